"""Sequences of ids as trees: what they begin with in common stands once, in the order of the sequences."""

from __future__ import annotations

import numpy as np

from specdec_nn.drafters.sequences import sequence_trees


def packed(ids: list[list[list[int]]], limits: list[int]) -> list[tuple[list[int], list[int]]]:
    """Return tokens and parents of each request."""
    draft = sequence_trees(np.array(ids), np.array(limits, np.int32))
    assert draft.lengths is not None
    assert draft.parents is not None
    ends = np.cumsum(draft.lengths)[:-1]
    rows = zip(np.split(draft.tokens, ends), np.split(draft.parents, ends), strict=True)
    return [(tokens.tolist(), parents.tolist()) for tokens, parents in rows]


def test_common_beginnings_stand_once_in_the_order_of_the_sequences() -> None:
    beams = [[[1, 2], [1, 3]], [[1, 2], [4, 2]]]
    assert packed(beams, [9, 9]) == [([1, 2, 3], [-1, 0, 0]), ([1, 2, 4, 2], [-1, 0, -1, 2])]


def test_a_smaller_limit_keeps_the_first_nodes() -> None:
    beams = [[[5, 6, 7], [8, 6, 7]]] * 3
    assert packed(beams, [1, 4, 5]) == [
        ([5], [-1]),
        ([5, 6, 7, 8], [-1, 0, 1, -1]),
        ([5, 6, 7, 8, 6], [-1, 0, 1, -1, 3]),
    ]


def test_equal_ids_behind_different_beginnings_and_of_other_requests_are_nodes_of_their_own() -> None:
    rng = np.random.default_rng(0)
    beams = rng.integers(0, 3, (4, 6, 5))
    limits = np.full(4, 30)
    for own, (tokens, parents) in zip(beams, packed(beams.tolist(), limits.tolist()), strict=True):
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*(() if parent < 0 else paths[parent]), token))
        wanted = {tuple(beam[:depth].tolist()): None for beam in own for depth in range(1, 6)}
        assert paths == list(wanted)
