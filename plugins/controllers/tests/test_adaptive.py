"""`adaptive` on a scripted machine: k follows acceptance and cost, and what drafts nothing is tried again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scripted_machine import Machine, Table, free, linear, steep_from

from specdec_core.host.costs import StepCosts
from specdec_core.stats import StepStats
from specdec_plugin_controllers.adaptive import Adaptive
from specdec_plugin_controllers.pacing import PLAIN_EVERY, PROBE
from specdec_plugin_controllers.places import Places

K, EVERY = 8, 16


def machine(step, draft=None, *, whole=False, k=K, hysteresis=0.02):
    table = Table(step) if draft is None else Table(step, draft)
    return Machine(Adaptive(Places(k, whole=whole), EVERY, hysteresis), table, k)


def test_nothing_accepted_and_rows_that_cost_switch_drafting_off():
    host = machine(linear)
    host.accepts = {"a": 0}
    limits = host.run(200)
    assert limits[-40:].count(0) >= 36 and max(limits[-40:]) <= PROBE


def test_all_accepted_and_free_rows_draft_as_much_as_is_allowed():
    host = machine(free)
    host.accepts = {"a": K}
    assert set(host.run(60)[10:]) == {K}


def test_free_rows_are_used_even_where_little_is_accepted():
    host = machine(free)
    host.accepts = {"a": itertools.cycle([0, 0, 1]).__next__}
    assert min(host.run(100)[20:]) >= 1


@pytest.mark.parametrize("limit", [3, 5, 8])
def test_k_ends_where_rows_become_dear(limit):
    host = machine(steep_from(limit), hysteresis=0.0)
    host.accepts = {"a": K}
    assert set(host.run(80)[20:]) == {limit - 1}, "the newest id takes a row as well"


def test_k_rises_when_acceptance_does_and_falls_with_it():
    host = machine(lambda rows: 10.0 + 2.0 * rows)
    host.accepts = {"a": 1}
    low = host.run(150)[-1]
    host.accepts["a"] = K
    high = host.run(150)[-1]
    host.accepts["a"] = 0
    none = host.run(200)
    assert low in (1, 2) and high == K and none[-40:].count(0) >= 36, (low, high, none)


def test_drafting_that_takes_too_long_is_left_off_though_all_is_accepted():
    host = machine(free, lambda most: 15.0 * most)
    host.accepts = {"a": K}
    limits = host.run(200)
    assert sum(limits[-100:]) <= 100 * 0.1 * K, "a draft costs half as much again as a plain step brings"


def test_a_request_that_drafts_nothing_is_probed_every_so_often_and_never_off_for_good():
    host = machine(lambda rows: 20.0 + rows)
    host.accepts = {"a": 0}
    host.run(100)
    gaps = np.diff(np.flatnonzero(host.run(300)))
    assert set(gaps.tolist()) == {EVERY + 1}


def test_probes_take_a_hundredth_of_the_time_where_rows_are_dear_and_still_come():
    host = machine(linear)
    host.accepts = {"a": 0}
    host.run(300)
    limits = host.run(1500)
    assert 0 < sum(limits) <= 0.013 * 1500, "a row costs what a plain step does"


def test_a_probe_that_is_accepted_is_followed_by_another_at_once_until_drafting_is_on_again():
    host = machine(lambda rows: 10.0 + 2.0 * rows)
    host.accepts = {"a": 0}
    host.run(300)
    host.accepts["a"] = K
    limits = host.run(120)
    first = next(i for i, limit in enumerate(limits) if limit)
    assert first <= EVERY
    assert 0 not in limits[first:], "it goes on from the first success"
    assert limits[-1] == K


def test_a_probe_waits_until_something_is_offered():
    host = machine(lambda rows: 20.0 + rows)
    host.accepts = {"a": 0}
    host.run(100)
    host.offers["a"] = 0
    limits = host.run(60)
    waiting = limits[limits.index(PROBE) :]
    assert set(waiting) == {PROBE}, "a call that finds nothing costs no row"


def test_each_request_has_its_own_k():
    host = machine(lambda rows: 10.0 + 2.0 * rows)
    host.accepts = {"good": K, "bad": 0}
    for _ in range(200):
        host.step()
    last = [host.step() for _ in range(EVERY)]
    assert {limits["good"] for limits in last} == {K}
    assert [limits["bad"] for limits in last].count(0) >= EVERY - 2


def test_a_small_change_of_costs_does_not_change_k():
    noise = np.random.default_rng(0)
    host = machine(lambda rows: 10.0 + 1.0 * rows + 0.02 * noise.standard_normal(np.shape(rows)), hysteresis=0.05)
    host.accepts = {"a": 4}
    host.run(300)
    assert len(set(host.run(200))) <= 2


def test_costs_are_measured_in_a_few_steps_at_the_beginning():
    host = machine(linear)
    host.table.known = False
    host.accepts = {"a": 0}
    assert host.run(6) == [0, 0, K, K, K, K]
    host = machine(linear)
    host.table.known = False
    host.accepts = dict.fromkeys("abcdefgh", 0)
    assert [set(host.step().values()) for _ in range(4)] == [{0}, {0}, {2}, {2}], "eight times K rows would be dear"


@pytest.mark.parametrize("size", [1, 8, 32])
def test_from_the_first_step_on_a_batch_that_accepts_nothing_loses_little(size):
    """Costs are what the host's own table makes of the times of steps, not given."""
    costs = StepCosts()

    def took(rows):
        return float(np.interp(rows, [1, 8, 16, 256], [37.0, 43.0, 70.0, 970.0]))

    host = Machine(Adaptive(Places(15), 32, 0.02), costs, 15)
    host.accepts = {f"r{i}": 0 for i in range(size)}
    total = 0.0
    for _ in range(300):
        rows = size + sum(host.step().values())
        total += took(rows)
        one = StepStats(["x"] * size, [0], [0] * (size - 1) + [rows - size], [0] * size, [1] * size)
        one.seconds = {"propose": 1e-4, "forward": took(rows) / 1e3}
        costs.observe(one, (rows - size) // size)
    assert total < 1.025 * 300 * took(size)


def test_a_session_that_always_drafts_measures_a_plain_step_now_and_then():
    host = machine(free)
    host.accepts = {"a": K}
    limits = host.run(3 * PLAIN_EVERY)
    assert limits[20:].count(0) in (2, 3)


def test_a_tree_is_drafted_whole_or_not_at_all():
    host = machine(lambda rows: 10.0 + 0.5 * rows, whole=True, k=16)
    host.accepts = {"a": 4}
    good = host.run(100)
    host.accepts["a"] = 0
    bad = host.run(300)
    assert set(good + bad) == {0, 16}
    assert good[-1] == 16 and bad[-2 * EVERY :].count(16) <= 2


def test_limits_below_k_are_kept_and_forgotten_with_their_reason():
    host = machine(free)
    host.accepts = {"a": K}
    host.run(40)
    host.k = 2
    assert set(host.run(10)) == {2}
    host.k = K
    assert host.run(10)[-1] == K


def test_what_is_known_of_requests_that_ended_is_dropped():
    controller = Adaptive(Places(K), EVERY, 0.02)
    host = Machine(controller, Table(linear), K)
    for i in range(500):
        host.accepts = {f"r{i}": 1, f"r{i + 1}": 0}
        host.step()
        controller.finished([f"r{i}"])
    assert len(controller.places) == 1
    assert controller._idle.size <= 8


def test_a_request_that_comes_back_under_a_known_name_goes_on_and_a_new_one_begins_anew():
    host = machine(linear)
    host.accepts = {"a": 0}
    host.run(100)
    idle = host.controller._idle.copy()
    host.accepts = {"b": 0}
    host.run(3, "b")
    host.accepts = {"a": 0}
    assert host.controller.places.known("a")
    host.run(1)
    slot = host.controller.places.slots(["a"])
    assert host.controller._idle[slot] in (idle[slot] + 1, 0)
