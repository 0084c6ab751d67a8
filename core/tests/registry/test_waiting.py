"""A limit on another process counts time in which this one ran."""

import queue

import pytest

from specdec_core.registry import waiting
from specdec_core.registry.waiting import wait


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

    assert wait(lambda _: "a line", 1.0, queue.Empty) == "a line"
    with pytest.raises(queue.Empty):
        wait(nothing, 1.0, queue.Empty)
    assert sum(asked) == pytest.approx(1.0, abs=0.1)


def test_a_wait_that_took_hours_counts_as_a_short_one(clock):
    answers = iter([3600.0, 3600.0, None])

    def get(seconds):
        gone = next(answers)
        if gone is None:
            return "a line"
        clock[0] += gone
        raise queue.Empty

    assert wait(get, 1.0, queue.Empty) == "a line"


def test_without_a_limit_it_waits(clock):
    tries = iter(range(1000))

    def get(seconds):
        clock[0] += seconds
        if next(tries) < 999:
            raise queue.Empty
        return "a line"

    assert wait(get, None, queue.Empty) == "a line"
