"""`confidence` on a scripted machine: drafts are cut where what they turned out to be worth is below their rows."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
from scripted_machine import Table, free, linear

from specdec_core.stats import StepStats
from specdec_plugin_controllers.confidence import PATIENCE, Confidence


def step(controller, estimates, accepted=None):
    """Return how many drafts of each request are kept; `accepted` says how many of them turn out right."""
    requests = [SimpleNamespace(id=str(i)) for i in range(len(estimates))]
    controller.limit(requests, [8] * len(requests))
    kept = controller.trim(requests, [np.array(part, np.float32) for part in estimates])
    right = [min(a, b) for a, b in zip(kept, accepted or kept, strict=True)]
    names = [request.id for request in requests]
    controller.observe(StepStats(names, list(kept), list(kept), right, [n + 1 for n in right]))
    return list(kept)


def made(table, every=1000):
    controller = Confidence(every)
    controller.use_costs(table)
    return controller


def test_free_rows_keep_every_draft_and_dear_ones_those_that_are_likely():
    estimates = [[0.95, 0.9, 0.3, 0.1], [0.2, 0.1]]
    assert step(made(Table(free)), estimates) == [4, 2]
    assert step(made(Table(lambda rows: 10.0 + 2.0 * rows)), estimates) == [2, 0]


def test_without_measured_costs_nothing_is_cut():
    table = Table(linear)
    table.known = False
    assert step(made(table), [[0.1, 0.1], []]) == [2, 0]


def test_estimates_count_for_what_they_turn_out_to_be():
    controller = made(Table(lambda rows: 10.0 + 3.0 * rows), every=4)
    for _ in range(100):
        step(controller, [[0.95, 0.95]], [0])
    assert step(controller, [[0.95, 0.95]], [0]) in ([0], [2])
    cuts = [step(controller, [[0.95, 0.95]], [0]) for _ in range(8)]
    assert cuts.count([0]) >= 5, "it says 0.95 and is never right"
    assert cuts.count([2]) == 2, "every fourth step looks whether it is right by now"
    for _ in range(400):
        step(controller, [[0.95, 0.95]], [2])
    assert step(controller, [[0.95, 0.95]], [2]) == [2]


def test_of_a_tree_the_nodes_that_were_accepted_count_and_not_the_first_ones():
    controller, request = made(Table(free)), SimpleNamespace(id="a")
    for _ in range(200):  # of two siblings, that which says 0.15 is always right
        controller.limit([request], [8])
        assert controller.trim([request], [np.array([0.95, 0.15], np.float32)]) == [2]
        controller.observe(StepStats(["a"], [2], [2], [1], [2], nodes=[[1]]))
    controller.use_costs(Table(lambda rows: 10.0 + 3.0 * rows))
    assert step(controller, [[0.95]]) == [0]
    assert step(controller, [[0.15]]) == [1]


def test_a_method_without_estimates_is_reported_once_and_keeps_its_drafts(caplog):
    controller = made(Table(linear))
    with caplog.at_level(logging.WARNING):
        for _ in range(3 * PATIENCE):
            assert step(controller, [[], []]) == [0, 0]
    assert [record.message for record in caplog.records if "none with an estimate" in record.message] != []
    assert len(caplog.records) == 1


def test_requests_that_got_no_answer_leave_nothing_behind():
    controller = made(Table(free))
    for i in range(100):
        controller.limit([SimpleNamespace(id=str(i))], [4])
        controller.trim([SimpleNamespace(id=str(i))], [np.array([0.5], np.float32)])
    assert len(controller._shown) == 1
