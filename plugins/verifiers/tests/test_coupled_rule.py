"""`coupled` walks from the newest id to the child that equals the draw, and reports where it has been."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.noise import Noise
from specdec_core.protocols import Verifier
from specdec_plugin_verifiers.coupled import Coupled

VOCAB = 12


def noise_of(rows):
    return Noise(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))


def sampled(draft):
    return np.zeros(len(draft.lengths), np.bool_)


def verify(draft, draws):
    logits = torch.zeros(len(draws), VOCAB)
    return Coupled().verify(draft, logits, noise_of(len(draws)), draws, sampled(draft))


def test_it_is_a_verifier():
    assert isinstance(Coupled(), Verifier)


@pytest.mark.parametrize("trees", [False, True])
def test_random_chains_follow_the_walk_spelled_out_with_and_without_parents(trees, walk, unpack, random_case):
    rng = np.random.default_rng(3)
    accepted = 0
    for _ in range(3000):
        case = random_case(rng, chains=True)
        verdict = verify(case.draft(trees=trees), case.target_draws())
        assert unpack(verdict) == walk(case)
        accepted += len(verdict.path)
    assert accepted > 3000


def test_random_trees_follow_the_walk_spelled_out(walk, unpack, random_case):
    rng = np.random.default_rng(4)
    deepest = 0
    for _ in range(3000):
        case = random_case(rng, chains=False)
        verdict = verify(case.draft(trees=True), case.target_draws())
        assert unpack(verdict) == walk(case)
        deepest = max([deepest, *verdict.accepted.tolist()])
    assert deepest >= 4


def test_the_arrays_of_a_verdict_are_int32():
    for parents in (None, np.array([-1, 0], np.int32)):
        draft = Draft([2], np.array([3, 4], np.int32), parents=parents)
        verdict = verify(draft, torch.tensor([3, 4, 5]))
        kinds = {getattr(verdict, name).dtype for name in ("accepted", "path", "emitted", "logits_row")}
        assert kinds == {np.dtype(np.int32)}


def test_empty_rows_emit_their_draw_and_stand_between_others(unpack):
    draft = Draft.of([[], [1, 2], [], [], [3], []])
    verdict = verify(draft, torch.tensor([7, 1, 2, 8, 9, 10, 3, 4, 11]))
    assert unpack(verdict) == [
        ([], [7], [0]),
        ([0, 1], [1, 2, 8], [1, 2, 3]),
        ([], [9], [4]),
        ([], [10], [5]),
        ([0], [3, 4], [6, 7]),
        ([], [11], [8]),
    ]


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_batch_without_any_draft_emits_one_id_a_row(trees, rows, unpack):
    draft = Draft.empty(rows)
    draft.parents = np.empty(0, np.int32) if trees else None
    verdict = verify(draft, torch.arange(rows))
    assert unpack(verdict) == [([], [row], [row]) for row in range(rows)]


def test_nothing_after_the_first_mismatch_stands_even_if_it_equals_its_draw(unpack):
    verdict = verify(Draft.of([[1, 9, 3, 4]]), torch.tensor([1, 2, 3, 4, 5]))
    assert unpack(verdict) == [([0], [1, 2], [0, 1])]


@pytest.mark.parametrize("order", list(itertools.permutations([5, 6, 7])))
def test_only_the_child_that_equals_the_draw_is_followed_whatever_the_order_of_children(order, unpack):
    """docs/bug-reports.md, row 14: at temperature 0 the draw is the argmax, so no other child can be accepted."""
    draft = Draft([3], np.array(order, np.int32), parents=np.array([-1, -1, -1], np.int32))
    node = order.index(6)
    draws = torch.tensor([6, 8, 9, 10])
    assert unpack(verify(draft, draws)) == [([node], [6, int(draws[node + 1])], [0, node + 1])]
    draws[0] = 11
    assert unpack(verify(draft, draws)) == [([], [11], [0])]


def test_the_walk_goes_to_the_deepest_node_that_agrees(unpack):
    #        newest -> 1 -> 2 -> 3,   newest -> 4 -> 5,   and 1 -> 6
    tokens, parents = [1, 4, 2, 6, 5, 3], [-1, -1, 0, 0, 1, 2]
    draft = Draft([6], np.array(tokens, np.int32), parents=np.array(parents, np.int32))
    follow_1_2_3 = torch.tensor([1, 2, 5, 3, 11, 11, 8])
    assert unpack(verify(draft, follow_1_2_3)) == [([0, 2, 5], [1, 2, 3, 8], [0, 1, 3, 6])]
    follow_4_5 = torch.tensor([4, 2, 5, 3, 11, 9, 8])
    assert unpack(verify(draft, follow_4_5)) == [([1, 4], [4, 5, 9], [0, 2, 5])]


def test_of_equal_siblings_one_is_followed_and_the_ids_are_its_draws():
    draft = Draft([4], np.array([3, 3, 5, 6], np.int32), parents=np.array([-1, -1, 0, 1], np.int32))
    draws = torch.tensor([3, 5, 6, 7, 8])
    verdict = verify(draft, draws)
    assert verdict.emitted.tolist() == draws[verdict.logits_row.tolist()].tolist()
    assert verdict.accepted.tolist() == [2]


@pytest.mark.parametrize("trees", [False, True])
def test_inputs_stay_as_they_are(trees, random_case):
    rng = np.random.default_rng(5)
    for _ in range(200):
        case = random_case(rng, chains=True)
        draft, draws = case.draft(trees=trees), case.target_draws()
        logits, noise = torch.randn(len(draws), VOCAB), noise_of(len(draws))
        kept = [draft.tokens.copy(), list(draft.lengths), logits.clone(), draws.clone(), noise.keys.copy()]
        parents = None if draft.parents is None else draft.parents.copy()
        Coupled().verify(draft, logits, noise, draws, sampled(draft))
        assert np.array_equal(draft.tokens, kept[0])
        assert list(draft.lengths) == kept[1]
        assert torch.equal(logits, kept[2])
        assert torch.equal(draws, kept[3])
        assert np.array_equal(noise.keys, kept[4])
        assert (draft.parents is None) == (parents is None)
        assert parents is None or np.array_equal(draft.parents, parents)


def test_a_host_that_does_not_draw_is_told_so():
    with pytest.raises(ValueError, match=r"'coupled'.*draws"):
        Coupled().verify(Draft.of([[1]]), torch.zeros(2, VOCAB), noise_of(2), None, np.array([False]))
