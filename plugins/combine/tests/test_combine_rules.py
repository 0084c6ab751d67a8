"""One draft out of several: what each rule takes; of merged trees in test_combine_merge.py."""

from __future__ import annotations

import pytest

from specdec_plugin_combine.estimate import Estimate, depth_reached
from specdec_plugin_combine.rules import EMPTY, PartRow, extend, first, longest


def chain(part, *tokens, q_row=None):
    return PartRow(list(tokens), None, [part] * len(tokens), q_row)


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
