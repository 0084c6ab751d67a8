"""Cuts by cost on a scripted machine: drafts run where their chance is above what their row takes, and nowhere else."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specdec_core.config.resolve import resolve
from specdec_core.draft import Draft
from specdec_core.errors import ConfigError
from specdec_core.host.cost_cut import FIRST, PLAIN_EVERY, CostCut, cost_cut
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_core.stats import StepStats


class Machine:
    """Requests whose drafts come true up to a number; a step of r rows takes `ms(r)`. There is no clock."""

    def __init__(self, ms):
        self.ms, self.cut = ms, CostCut("scripted")
        self.texts: dict[str, list[int]] = {}

    def step(self, right, estimates=(0.6, 0.6, 0.6), parents=None):
        """Run a step of requests `right`: how many drafts of each would come true; return how many ran."""
        requests = [SimpleNamespace(id=n, tokens=np.array(self.texts.setdefault(n, [0]), np.int32)) for n in right]
        each = len(estimates)
        tokens = np.tile(np.arange(1, each + 1, dtype=np.int32), len(right))
        shares = np.tile(np.cumprod(np.array(estimates, np.float32)), len(right))
        draft = Draft([each] * len(right), tokens, parents, confidence=shares)
        kept = self.cut.trim(requests, draft, len(right))
        accepted = [min(n, length) for n, length in zip(right.values(), kept.lengths, strict=True)]
        for (name, n), length in zip(right.items(), accepted, strict=True):
            self.texts[name] += [*range(1, length + 1), length + 1 if length < min(n, each) else 99]
        rows = len(right) + sum(kept.lengths)
        emitted = [n + 1 for n in accepted]
        seconds = {"forward": self.ms(rows) / 1e3}
        self.cut.observe(
            StepStats(list(right), [each] * len(right), list(kept.lengths), accepted, emitted, seconds=seconds)
        )
        return list(kept.lengths)

    def run(self, steps, right, **more):
        return [self.step(right, **more) for _ in range(steps)]


def dear(rows):
    return 10.0 + 2.0 * rows


def test_drafts_that_never_come_true_do_not_run_once_costs_are_known_and_their_own_text_brings_them_back():
    machine = Machine(dear)
    assert machine.run(FIRST, {"a": 0}) == [[3]] * FIRST, "nothing is known yet"
    machine.run(60, {"a": 0})
    assert machine.run(40, {"a": 0}) == [[0]] * 40, "no probe costs a row"
    machine.run(60, {"a": 3})
    assert machine.run(40, {"a": 3}) == [[3]] * 40


def test_where_rows_are_free_every_draft_runs():
    machine = Machine(lambda rows: 12.0)
    machine.run(FIRST + 60, {"a": 0})
    assert machine.run(40, {"a": 0}) == [[3]] * 40


def test_a_session_that_always_drafts_runs_plain_steps_now_and_then_to_know_their_cost():
    machine = Machine(dear)
    machine.run(FIRST, {"a": 3})
    ran = [lengths[0] for lengths in machine.run(PLAIN_EVERY + 10, {"a": 3})]
    assert ran[:2] == [0, 0] and ran.count(0) == 3 and set(ran) == {0, 3}


def on_a_device(machine):
    """Ask about one request's drafts that are on a device whose values nobody can have."""
    values = (torch.zeros(3, dtype=kind, device="meta") for kind in (torch.int32, torch.int32, torch.float32))
    tokens, parents, confidence = values
    draft = Draft([3], tokens, parents, confidence=confidence)
    return draft, lambda: machine.cut.trim([SimpleNamespace(id="a", tokens=np.zeros(4, np.int32))], draft, 1)


def test_drafts_on_a_device_are_read_only_where_their_rows_cost_something():
    for ms, is_read in ((lambda rows: 12.0, False), (dear, True)):
        machine = Machine(ms)
        draft, asked = on_a_device(machine)
        assert asked() is draft, "nothing is cut yet, so nothing is read"
        machine.run(FIRST + 60, {"a": 3})
        if is_read:
            with pytest.raises(NotImplementedError):
                asked()
        else:
            assert asked() is draft


def test_each_request_is_judged_by_what_its_own_drafts_came_to():
    machine = Machine(dear)
    machine.run(FIRST + 100, {"good": 3, "bad": 0})
    assert machine.run(20, {"good": 3, "bad": 0}) == [[3, 0]] * 20


def test_a_draft_runs_as_far_as_it_pays():
    machine = Machine(dear)
    machine.run(FIRST + 100, {"a": 1}, estimates=(0.9, 0.3, 0.3))
    ran = machine.run(20, {"a": 1}, estimates=(0.9, 0.3, 0.3))
    assert ran == [[1]] * 20


def test_of_a_tree_whole_paths_stay():
    machine, parents = Machine(dear), np.array([-1, 0, 1], np.int32)
    machine.run(FIRST + 100, {"a": 1}, parents=parents, estimates=(0.9, 0.3, 0.9))
    cut = machine.cut.trim(
        [SimpleNamespace(id="a", tokens=np.array(machine.texts["a"], np.int32))],
        Draft([3], np.array([1, 2, 5], np.int32), np.array([-1, 0, -1], np.int32),
              confidence=np.array([0.9, 0.27, 0.01], np.float32)),
        1,
    )  # fmt: skip
    assert (cut.lengths, cut.tokens.tolist(), cut.parents.tolist()) == ([1], [1], [-1])


@pytest.mark.parametrize("without", ["estimates", "point masses"])
def test_drafts_without_estimates_and_drawn_ones_stay(without):
    machine = Machine(dear)
    machine.run(FIRST + 60, {"a": 0})
    draft = Draft([2], np.array([1, 2], np.int32), confidence=np.array([0.5, 0.2], np.float32))
    if without == "estimates":
        draft.confidence = None
    else:
        draft.q_row = np.array([0, -1], np.int32)
    assert machine.cut.trim([SimpleNamespace(id="a", tokens=np.array([0], np.int32))], draft, 1) is draft


def test_nothing_is_kept_of_requests_that_ended():
    machine = Machine(dear)
    for i in range(50):
        machine.step({str(i): 1})
        machine.cut.finished(str(i))
    assert not machine.cut._requests


def test_the_first_cut_is_logged_with_its_reason_and_the_option_that_switches_it_off(caplog):
    machine = Machine(dear)
    with caplog.at_level(logging.INFO):
        machine.run(FIRST + 80, {"a": 0})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "1 rows takes 12.0 ms" in lines[0] and '"cut_by_cost": false' in lines[0]


INFO = TargetInfo(model=None, hf_config={}, vocab_size=128, hidden_size=32, num_layers=2, max_model_len=256)


@pytest.mark.parametrize(
    ("keys", "cuts"),
    [
        ({}, True),
        ({"cut_by_cost": True}, True),
        ({"cut_by_cost": False}, False),
        ({"controller": "adaptive"}, False),
        ({"rejection_sample_method": "standard"}, False),
    ],
)
def test_drafts_are_cut_unless_that_is_switched_off_or_a_controller_decides_or_the_text_could_depend_on_it(keys, cuts):
    config = {"method": "ngram", "num_speculative_tokens": 3, **keys}
    assert (cost_cut(resolve(config, INFO, Registry(Catalog.discover()))) is not None) == cuts


def test_the_key_takes_true_and_false_alone_and_is_one_of_the_whole():
    with pytest.raises(ConfigError, match="cut_by_cost"):
        resolve(
            {"method": "ngram", "num_speculative_tokens": 3, "cut_by_cost": "no"}, INFO, Registry(Catalog.discover())
        )
    parts = [{"method": "ngram", "cut_by_cost": False}, {"method": "suffix"}]
    with pytest.raises(ConfigError, match=r"methods\[0\]\.cut_by_cost: is a key of the whole"):
        resolve({"method": "combine", "methods": parts}, INFO, Registry(Catalog.discover()))
