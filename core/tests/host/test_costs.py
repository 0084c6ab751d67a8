"""What steps cost by rows: measured while decoding, interpolated, and the same object for every host."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.draft import Draft
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.controlling import ContainedController
from specdec_core.host.costs import StepCosts
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.stats import StepStats
from specdec_core.traits import MethodTraits


def step(drafted, ms, propose=1.0, **more):
    seconds = {"propose": propose / 1e3, "forward": 0.75 * ms / 1e3, "sample": 0.25 * ms / 1e3}
    none = [0] * len(drafted)
    return StepStats([str(i) for i in range(len(drafted))], drafted, drafted, none, none, seconds=seconds, **more)


def test_times_are_interpolated_between_widths_and_extended_beyond_them():
    costs = StepCosts()
    assert costs.step_ms(1) is None
    for _ in range(3):
        costs.observe(step([0], 10.0), 0)
    assert costs.step_ms(1) is None, "one width tells nothing of others"
    for _ in range(3):
        costs.observe(step([4, 4], 28.0, propose=3.0), 4)
    assert costs.step_ms([1, 4, 10, 19]).tolist() == pytest.approx([10.0, 16.0, 28.0, 46.0])
    assert costs.draft_ms([0, 2, 4]).tolist() == pytest.approx([1.0, 2.0, 3.0])


def test_steps_with_prompts_and_failed_ones_do_not_count():
    costs = StepCosts()
    for _ in range(3):
        costs.observe(step([0], 500.0, prompt_rows=64), 0)
        costs.observe(step([3], 500.0, failed="propose: ValueError"), 3)
        costs.observe(step([], 500.0), 0)
    for _ in range(3):
        costs.observe(step([0], 10.0), 0)
        costs.observe(step([3], 13.0), 3)
    assert costs.step_ms([1, 4]).tolist() == pytest.approx([10.0, 13.0])


def test_other_work_on_the_machine_and_the_first_call_do_not_spoil_a_width():
    costs, rng = StepCosts(), np.random.default_rng(0)
    costs.observe(step([7], 4000.0), 7)
    for _ in range(40):
        costs.observe(step([0], 10.0 * (1 + (rng.random() < 0.4) * 5)), 0)
        costs.observe(step([7], 12.0 * (1 + (rng.random() < 0.4) * 5)), 7)
    assert costs.step_ms([1, 8]).tolist() == pytest.approx([10.0, 12.0])


def test_more_rows_never_cost_less():
    costs, rng = StepCosts(), np.random.default_rng(1)
    for _ in range(200):
        drafted = int(rng.integers(0, 300))
        costs.observe(step([drafted], 10.0 + rng.random() * 5), drafted)
    assert np.all(np.diff(costs.step_ms(np.arange(1, 400))) >= 0)


def test_memory_is_bounded_whatever_widths_come():
    costs = StepCosts()
    for drafted in range(0, 20_000, 7):
        costs.observe(step([drafted], 10.0), drafted)
    assert len(costs._steps._seen) < 120
    assert max(len(seen) for seen in costs._steps._seen.values()) <= 16


class Everything:
    """A controller with all that one may offer; raises in the call that it is told."""

    def __init__(self, bad=None):
        self.bad, self.calls = bad, []

    def _called(self, call):
        self.calls.append(call)
        if call == self.bad:
            raise ValueError(call)

    def use_costs(self, costs):
        self.costs = costs
        self._called("use_costs")

    def limit(self, requests, k):
        self._called("limit")
        return [min(2, most) for most in k]

    def trim(self, requests, confidence):
        self._called("trim")
        return [1] * len(confidence)

    def observe(self, stats):
        self._called("observe")

    def finished(self, request_ids):
        self._called("finished")
        self.ended = list(request_ids)


class Drafts:
    """Drafts as much as it may, with an estimate."""

    def start(self, request):
        """Take no notice."""

    finish = lambda self, request, reason: None  # noqa: E731

    def propose(self, batch):
        lengths = batch.max_draft.tolist()
        confidence = np.full(sum(lengths), 0.5, np.float32)
        return Draft(lengths, np.arange(sum(lengths), dtype=np.int32), confidence=confidence)


class Configured:
    method, num_speculative_tokens, max_model_len = "m", 4, 100
    traits, config = MethodTraits(), SpeculativeConfig()


class Request:
    def __init__(self, name):
        self.id, self.key, self.seq_index, self.max_draft, self.arrival = name, 1, 0, None, 0
        self.tokens = np.arange(5, dtype=np.int32)
        self.view = SimpleNamespace(id=name, tokens=self.tokens)

    def __len__(self):
        return 5


def run(controller, strict=False):
    contained = ContainedController(controller, "mine", strict=strict)
    budget = DraftBudget(Configured(), contained)
    runner = ProposerRunner(Drafts(), Configured.traits, budget, 100, Containment("m", strict=True))
    request = Request("a")
    draft = runner.propose([Slot(request, 4, True, 10)])
    contained.observe(step([1], 10.0))
    runner.finish(request, "preempted")
    assert not hasattr(controller, "ended"), "it comes back"
    runner.finish(request, "done")
    return draft.lengths[0]


def test_a_controller_gets_costs_limits_cuts_figures_and_the_end_of_requests_in_this_order():
    controller = Everything()
    assert run(controller, strict=True) == 1
    assert controller.calls == ["use_costs", "limit", "trim", "observe", "finished"]
    assert controller.ended == ["a"]


@pytest.mark.parametrize(
    ("bad", "length"), [("use_costs", 1), ("limit", 1), ("trim", 2), ("observe", 1), ("finished", 1)]
)
def test_a_controller_that_raises_costs_its_wish_and_one_warning(bad, length, caplog):
    with caplog.at_level(logging.WARNING):
        assert run(Everything(bad)) == length
    assert [record.message for record in caplog.records if f"controller 'mine' failed in {bad}" in record.message]
    with pytest.raises(ValueError, match=bad):
        run(Everything(bad), strict=True)


def test_a_controller_that_offers_nothing_more_is_asked_for_nothing_more():
    class Plain:
        def limit(self, requests, k):
            return k

        def observe(self, stats):
            """Nothing to learn."""

    assert run(Plain(), strict=True) == 4
