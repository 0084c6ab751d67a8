"""What the counters promise: definitions that hold for empty, ragged, cut and stopped drafts, and JSON that parses."""

import json
from dataclasses import asdict

import pytest

from specdec.draft import StepStats
from specdec.metrics import SpecMetrics


def step(*rows, failed=None):
    proposed, drafted, accepted, emitted = (list(column) for column in zip(*rows, strict=True))
    ids = [str(i) for i in range(len(rows))]
    return StepStats(ids, proposed, drafted, accepted, emitted, failed=failed)


def test_before_any_draft_rates_are_null_and_the_json_parses():
    for metrics in (SpecMetrics(), SpecMetrics()):
        text = json.dumps(metrics.as_json(), allow_nan=False)
        assert json.loads(text)["acceptance_rate"] is None
        metrics.observe(step((0, 0, 0, 1)))
        data = json.loads(json.dumps(metrics.as_json(), allow_nan=False))
        assert (data["acceptance_rate"], data["mean_acceptance_length"], data["acceptance_per_pos"]) == (None, None, [])
        assert (data["steps"], data["empty"], data["drafts"], data["tokens_per_step"]) == (1, 1, 0, 1.0)


def test_three_of_five_accepted_emit_four():
    metrics = SpecMetrics()
    metrics.observe(step((5, 5, 3, 4)))
    assert (metrics.drafted, metrics.accepted, metrics.emitted) == (5, 3, 4)
    assert (metrics.acceptance_rate, metrics.mean_acceptance_length) == (0.6, 4.0)
    assert metrics.acceptance_per_pos == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_positions_are_divided_by_the_drafts_that_reached_them():
    metrics = SpecMetrics()
    metrics.observe(step((4, 4, 4, 5)))
    metrics.observe(step((1, 1, 1, 2)))
    assert metrics.drafted_per_pos == [2, 1, 1, 1]
    assert metrics.acceptance_per_pos[3] == 1.0


def test_proposed_cut_and_empty_are_three_counts():
    metrics = SpecMetrics()
    metrics.observe(step((3, 0, 0, 1), (4, 2, 1, 2), (0, 0, 0, 1)))
    assert (metrics.steps, metrics.proposed, metrics.cut, metrics.empty, metrics.drafts) == (3, 7, 5, 1, 1)
    assert metrics.mean_acceptance_length == 2.0


def test_a_stop_rule_that_cuts_a_block_changes_one_of_the_two_figures():
    metrics = SpecMetrics()
    metrics.observe(step((4, 4, 4, 2)))
    assert (metrics.accepted, metrics.accepted_kept) == (4, 2)
    assert (metrics.emitted_with_draft, metrics.kept_with_draft, metrics.emitted) == (5, 2, 2)
    assert metrics.mean_acceptance_length == 5.0


def test_failures_are_counted_by_step():
    metrics = SpecMetrics()
    metrics.observe(step((0, 0, 0, 1), (0, 0, 0, 1), failed="ValueError"))
    assert (metrics.failures, metrics.empty) == (1, 2)


def test_counters_never_decrease_and_a_contradiction_adds_nothing():
    metrics = SpecMetrics()
    metrics.observe(step((2, 2, 1, 2)))
    before = asdict(metrics)
    for wrong in ((2, 3, 1, 2), (2, 2, 3, 2), (2, 2, 1, 3), (-1, -1, -1, 0)):
        with pytest.raises(ValueError, match="contradict"):
            metrics.observe(step((2, 2, 2, 3), wrong))
        assert asdict(metrics) == before


def test_merged_counters_are_those_of_all_steps_together():
    rows = [(4, 4, 2, 3), (1, 1, 1, 2), (0, 0, 0, 1), (3, 2, 0, 1)]
    together = SpecMetrics()
    together.observe(step(*rows))
    merged = SpecMetrics()
    parts = []
    for row in rows:
        parts.append(SpecMetrics())
        parts[-1].add_row(*row)
    merged.merge(parts)
    assert merged == together
