"""One draft out of several: what each rule takes, and that a merged tree is a tree of the likeliest nodes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_plugin_combine.estimate import Estimate, depth_reached
from specdec_plugin_combine.rules import EMPTY, PartRow, extend, first, longest, merge


def chain(part, *tokens, q_row=None):
    return PartRow(list(tokens), None, [part] * len(tokens), q_row)


def tree(part, tokens, parents):
    return PartRow(tokens, parents, [part] * len(tokens))


def paths(row):
    """Return the paths of a draft, as tuples of tokens from the first one on."""
    found = []
    for node, token in enumerate(row.tokens):
        parent = node - 1 if row.parents is None else row.parents[node]
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def test_first_and_longest_take_one_draft_whole():
    rows = [EMPTY, chain(1, 4, 5), chain(2, 6, 7, 8), chain(3, 1, 2, 3)]
    assert first(rows).tokens == [4, 5]
    assert longest(rows).tokens == [6, 7, 8]
    assert first([EMPTY, EMPTY]).tokens == longest([EMPTY, EMPTY]).tokens == []


def test_a_longest_draft_is_a_point_mass_since_its_length_may_depend_on_what_was_drawn():
    assert first([chain(0, 4, 5, q_row=[0, 1])]).q_row == [0, 1]
    assert longest([chain(0, 4, 5, q_row=[0, 1])]).q_row is None


def test_extend_continues_a_chain_only_by_a_draft_that_begins_with_it():
    rows = [chain(0, 4, 5, q_row=[0, 1]), chain(1, 4, 6, 7, 8), chain(2, 4, 5, 9, 9)]
    row = extend(rows)
    assert (row.tokens, row.origin, row.q_row) == ([4, 5, 9, 9], [0, 0, 2, 2], [0, 1, -1, -1])
    assert extend(rows[:2]) is rows[0]
    assert extend([EMPTY, chain(1, 3, 3)]).tokens == [3, 3]


def test_merge_shares_common_beginnings_and_keeps_every_path():
    rows = [chain(0, 4, 5, 6), chain(1, 4, 5, 7), tree(2, [4, 8, 9], [-1, 0, -1])]
    merged = merge(rows, [Estimate() for _ in rows], 100)
    assert sorted(paths(merged)) == sorted({(4,), (4, 5), (4, 5, 6), (4, 5, 7), (4, 8), (9,)})
    assert merged.tokens[0] == 4
    assert merged.parents is not None


def test_what_several_parts_drafted_and_what_a_better_part_drafted_is_kept_first():
    good, bad = Estimate(), Estimate()
    for _ in range(30):
        good.learn(3, 3)
        bad.learn(0, 3)
    rows = [chain(0, 1, 2, 3), chain(1, 4, 5, 6)]
    assert merge(rows, [bad, good], 3).tokens == [4, 5, 6]
    assert merge(rows, [good, bad], 3).tokens == [1, 2, 3]
    shared = [chain(0, 1, 2), chain(1, 3, 4), chain(2, 3, 5)]
    assert merge(shared, [Estimate() for _ in shared], 1).tokens == [3]


@pytest.mark.parametrize("seed", range(20))
def test_a_merged_tree_is_in_contract_and_every_larger_limit_only_adds_to_it(seed):
    rng = random.Random(seed)
    rows = []
    for part in range(3):
        children = {}
        for node in range(rng.randint(0, 9)):
            children.setdefault((rng.randint(-1, len(children) - 1), node % 4))
        rows.append(tree(part, [token for _, token in children], [parent for parent, _ in children]))
    estimates = [Estimate() for _ in rows]
    for estimate in estimates:
        estimate.learn(rng.randint(0, 4), 4)
    whole = paths(merge(rows, estimates, 100))
    assert set(whole) == {path for row in rows for path in paths(row)}
    assert len(set(whole)) == len(whole)
    for limit in range(len(whole)):
        part = merge(rows, estimates, limit)
        assert paths(part) == whole[:limit]
        assert all(parent < node for node, parent in enumerate(part.parents))


@pytest.mark.parametrize(
    ("tokens", "parents", "gained", "expected"),
    [
        ([1, 2, 3], None, [1, 2, 9], (2, 3)),
        ([1, 2, 3], None, [9], (0, 3)),
        ([1, 2], None, [1, 2, 3], (2, 2)),
        ([1, 2, 3, 4], [-1, -1, 1, 2], [2, 3, 4, 5], (3, 3)),
        ([1, 2, 3, 4], [-1, -1, 1, 0], [1, 4, 4], (2, 2)),
        ([], None, [1], (0, 0)),
    ],
)
def test_how_far_a_draft_came_true(tokens, parents, gained, expected):
    assert depth_reached(tokens, parents, gained) == expected


def test_an_estimate_follows_what_happened_depth_by_depth():
    estimate = Estimate()
    for i in range(200):
        estimate.learn(2 if i % 2 else 1, 3)
    assert estimate.rate(0) > 0.95
    assert 0.35 < estimate.rate(1) < 0.65
    assert estimate.rate(2) < 0.1
    assert estimate.expected(2) == pytest.approx(estimate.rate(0) * (1 + estimate.rate(1)))


def test_a_part_that_estimates_its_own_nodes_is_taken_at_its_word():
    # By depth alone both siblings were as likely; the part says which one is.
    told = PartRow([7, 8, 9], [-1, -1, 1], [0, 0, 0], confidence=[0.1, 0.8, 0.4])
    merged = merge([told, PartRow([8, 6], None, [1, 1])], [Estimate(), Estimate()], 4)
    assert merged.tokens == [8, 6, 9, 7]
    assert merged.confidence is not None
    first = Estimate().rate(0)
    np.testing.assert_allclose(merged.confidence[0], 1 - 0.2 * (1 - first))
    np.testing.assert_allclose(merged.confidence[2], merged.confidence[0] * 0.5)
    assert merged.confidence == sorted(merged.confidence, reverse=True)
