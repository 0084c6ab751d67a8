"""What the counters promise: definitions that hold for empty, ragged, cut and stopped drafts, and JSON that parses."""

import copy
import json
from dataclasses import asdict

import pytest

from specdec_core.metrics import SpecDecodingStats, SpecMetrics
from specdec_core.stats import StepStats


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
    assert metrics.mean_acceptance_length == 2.0


def test_the_mean_length_counts_what_stop_rules_left():
    """Drafted 5, all accepted, and the third id ends the text: 3 ids were gained by one step."""
    metrics = SpecMetrics()
    metrics.observe(step((5, 5, 5, 3)))
    assert metrics.mean_acceptance_length == 3.0
    assert SpecDecodingStats.of(metrics, 5).num_accepted_tokens == 5


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


def test_what_was_counted_since_a_copy_is_what_the_later_steps_count_alone():
    early, late = [(4, 4, 2, 3), (0, 0, 0, 1)], [(5, 5, 5, 6), (2, 0, 0, 1)]
    metrics, alone = SpecMetrics(lossy=True), SpecMetrics(lossy=True)
    metrics.observe(step(*early))
    copied = copy.deepcopy(metrics)
    metrics.observe(step(*late, failed="ValueError"))
    alone.observe(step(*late, failed="ValueError"))
    assert metrics.since(copied) == alone
    assert metrics.since(metrics) == SpecMetrics(lossy=True, drafted_per_pos=[0] * 5, accepted_per_pos=[0] * 5)
    assert json.loads(json.dumps(metrics.since(metrics).as_json(), allow_nan=False))["acceptance_per_pos"] == [None] * 5


def test_a_sum_with_a_lossy_part_is_lossy_and_the_json_says_so():
    for parts in ([False, False], [False, True], [True, False]):
        metrics = SpecMetrics()
        metrics.merge(SpecMetrics(lossy=lossy) for lossy in parts)
        assert metrics.as_json()["lossy"] is any(parts)


ROWS = [(4, 4, 4, 5), (1, 1, 1, 2), (3, 0, 0, 1), (0, 0, 0, 1), (5, 5, 3, 2)]


def test_under_vllms_names_the_figures_are_the_same_observed_or_converted():
    metrics, stats = SpecMetrics(), SpecDecodingStats.new(6)
    for row in ROWS:
        metrics.add_row(*row)
        stats.observe_draft(row[1], row[2])
    assert stats == SpecDecodingStats.of(metrics, 6)
    # A row that was cut to nothing and one that had nothing are no drafts.
    assert stats == SpecDecodingStats(6, 3, 10, 8, [3, 2, 2, 1, 0, 0])


def test_vllms_counters_refuse_a_contradiction_and_add_nothing():
    stats = SpecDecodingStats.new(3)
    for drafted, accepted in ((4, 1), (2, 3), (1, -1)):
        with pytest.raises(ValueError, match="expected 0 <= accepted <= drafted <= num_spec_tokens"):
            stats.observe_draft(drafted, accepted)
    assert stats == SpecDecodingStats.new(3) == SpecDecodingStats.of(SpecMetrics(), 3)


def test_rows_for_which_nothing_was_asked_are_not_empty():
    metrics = SpecMetrics()
    metrics.observe(StepStats(["a", "b"], [0, 0], [0, 0], [0, 0], [1, 1], asked=[True, False]))
    metrics.add_row(0, 0, 0, 1, asked=False)
    assert (metrics.steps, metrics.empty) == (3, 1)


def test_parts_of_a_method_are_told_apart_in_chains_and_in_trees():
    metrics = SpecMetrics()
    chain = StepStats(["a", "b"], [3, 1], [3, 1], [2, 0], [3, 1], parts=[[0, 0, 2], [2]])
    tree = StepStats(["a"], [3], [3], [1], [2], depths=[2], nodes=[[2]], parts=[[0, 0, 1]])
    for each in (chain, tree):
        metrics.observe(each.copied())
    assert (metrics.drafted_per_part, metrics.accepted_per_part) == ([4, 1, 2], [2, 1, 0])
    assert sum(metrics.drafted_per_part) == metrics.drafted and sum(metrics.accepted_per_part) == metrics.accepted
    twice = SpecMetrics()
    twice.merge([metrics, metrics, SpecMetrics()])
    assert twice.since(metrics) == metrics
