"""`goodput` on a scripted machine: the rows of a batch go to the drafts that bring most, as many as pay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scripted_machine import Machine, Table, free, linear, steep_from

from specdec_plugin_controllers.goodput import Goodput
from specdec_plugin_controllers.places import Places

K = 6


def machine(step):
    return Machine(Goodput(Places(K), 32), Table(step), K)


def test_rows_that_are_scarce_go_to_the_requests_that_accept():
    host = machine(steep_from(10))
    host.accepts = {"good": K, "bad": 0, "worse": 0, "ill": 0}
    for _ in range(200):
        last = host.step()
    assert last["good"] == K
    assert sum(last.values()) + len(last) <= 11


@pytest.mark.parametrize(("step", "expected"), [(free, K), (linear, 0)])
def test_free_rows_are_all_used_and_dear_ones_not_at_all(step, expected):
    host = machine(step)
    host.accepts = {"a": itertools.cycle([0, 1, 0, 3]).__next__, "b": itertools.cycle([1, 0]).__next__}
    limits = [host.step() for _ in range(200)][-8:]
    usual = np.median([list(step.values()) for step in limits])
    assert usual == expected if expected == 0 else usual >= 3


def test_a_large_batch_drafts_less_than_a_small_one_on_the_same_machine():
    mean = {}
    for size in (1, 16):
        host = machine(lambda rows: np.maximum(40.0, 4.0 * rows))
        host.accepts = {f"r{i}": itertools.cycle([2, 0, 1, 3]).__next__ for i in range(size)}
        given = [host.step() for _ in range(200)][-50:]
        mean[size] = np.mean([list(step.values()) for step in given])
    assert mean[16] < 0.5 * mean[1]


def test_the_choice_is_the_best_of_all_choices():
    """Against all pairs of limits, by the same expectations."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        slope = float(rng.uniform(0, 4))
        table = Table(lambda rows, slope=slope: 10.0 + slope * rows, lambda most: 0.0 * most)
        controller = Goodput(Places(4), 32)
        host = Machine(controller, table, 4)
        accepted = {name: rng.integers(0, 5, 200).tolist() for name in "ab"}
        host.accepts = {name: iter(values).__next__ for name, values in accepted.items()}
        for _ in range(100):
            host.step()
        slots = controller.places.slots(["a", "b"])
        chosen = controller.choose(slots, np.array([4, 4]))
        gains, rows = (
            np.concatenate([np.zeros((2, 1)), np.cumsum(part(slots), axis=1)], axis=1)
            for part in (controller.places.gains, controller.places.rows)
        )

        def rate(one, other, gains=gains, rows=rows, table=table):
            ran = 2 + rows[0, one] + rows[1, other]
            return (2 + gains[0, one] + gains[1, other]) / table.step_ms(ran)

        best = max(rate(one, other) for one in range(5) for other in range(5))
        assert rate(*chosen) == pytest.approx(best, rel=1e-9)
