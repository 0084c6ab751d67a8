"""A limit on another process counts time in which this one ran."""

import os
import queue
import time

import pytest

from specdec_core.registry import waiting
from specdec_core.registry.waiting import queued, wait

PID = os.getpid()


@pytest.fixture(autouse=True)
def queue_times(monkeypatch):
    """For how long the other process has waited for a core, which the test says."""
    times = [0.0]
    monkeypatch.setattr(waiting, "queued", lambda pid: times[0])
    return times


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves on."""
    now = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def test_what_comes_is_returned_and_the_limit_holds_for_what_does_not(clock):
    asked = []

    def nothing(seconds):
        asked.append(seconds)
        clock[0] += seconds
        raise queue.Empty

    assert wait(lambda _: "a line", 1.0, queue.Empty, PID) == "a line"
    with pytest.raises(queue.Empty):
        wait(nothing, 1.0, queue.Empty, PID)
    assert sum(asked) == pytest.approx(1.0, abs=0.15)


def test_a_wait_that_took_hours_counts_as_a_short_one(clock):
    answers = iter([3600.0, 3600.0, None])

    def get(seconds):
        gone = next(answers)
        if gone is None:
            return "a line"
        clock[0] += gone
        raise queue.Empty

    assert wait(get, 1.0, queue.Empty, PID) == "a line"


def test_without_a_limit_it_waits(clock):
    tries = iter(range(1000))

    def get(seconds):
        clock[0] += seconds
        if next(tries) < 999:
            raise queue.Empty
        return "a line"

    assert wait(get, None, queue.Empty, PID) == "a line"


def test_what_the_other_process_waits_for_a_core_does_not_count(clock, queue_times):
    """On a machine that has twice as much to do as it can."""
    asked = []

    def nothing(seconds):
        asked.append(seconds)
        clock[0] += seconds
        queue_times[0] += seconds / 2
        raise queue.Empty

    with pytest.raises(queue.Empty):
        wait(nothing, 1.0, queue.Empty, PID)
    assert sum(asked) == pytest.approx(2.0, abs=0.15)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not tell")
def test_the_system_tells_how_long_a_process_has_waited_for_a_core():
    assert 0 <= queued(PID) <= time.monotonic()
    assert queued(2**30) == 0
