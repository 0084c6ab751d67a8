"""The worked numbers of the formats through the real plans: re-ranking of a dynamic tree, over given tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from host import split

from specdec_core.draft import BatchView, Draft, Rows
from specdec_core.noise import Noise
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.drafters.hidden_state import HiddenStateDrafter
from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference, ancestor_lists, depths
from specdec_plugin_eagle.aux_layers import aux_layers
from specdec_plugin_eagle.dynamic_tree import DynamicTreePlan
from specdec_plugin_eagle.kernels.torch_ref import draft_rows, tree_expand
from specdec_plugin_eagle.options import EagleOptions
from specdec_testing.fakes import FakeRequest

ROOT, A, B, C, D, E, F = range(7)


class TableHead:
    """A head whose distribution after a token is a row of a table; its states are the tokens, one-hot."""

    def __init__(self, table: dict[int, dict[int, float]], size: int = 8, d2t: torch.Tensor | None = None) -> None:
        self.d2t = d2t
        self._logs = torch.full((size, size), -20.0)
        for token, distribution in table.items():
            for child, probability in distribution.items():
                self._logs[token, child] = np.log(probability)

    def features(self, rows: Rows) -> torch.Tensor:
        return torch.zeros(len(rows.tokens), len(self._logs))

    def forward(self, tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        return torch.nn.functional.one_hot(tokens, len(self._logs)).float()

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self._logs

    def feedback(self, states: torch.Tensor) -> torch.Tensor:
        return states


def drafted(table: dict[int, dict[int, float]], top_k: int, depth: int, nodes: int, d2t: torch.Tensor | None) -> Draft:
    """Draft after the newest id ROOT, in the second of two rows, the first being too short to draft."""
    plan = DynamicTreePlan(top_k, depth, tree_expand, draft_rows)
    proposer = HiddenStateDrafter(TableHead(table, d2t=d2t), DraftCache(KVArena(1000, torch.device("cpu"))), plan)
    views = [FakeRequest("in its prompt", [ROOT, A, B]), FakeRequest("ready", [B, ROOT])]
    for view in views:
        proposer.start(view)
    rows = Rows(
        request=np.array([0, 1], np.int32),
        positions=np.zeros(2, np.int32),
        tokens=np.array([A, ROOT], np.int32),
        hidden=None,
        aux=None,
        gap=np.zeros(2, np.bool_),
    )
    noise = Noise(np.zeros(2, np.uint64), np.zeros(2, np.int32), np.zeros(2, np.int32))
    batch = BatchView(views, np.ones(2, np.int32), np.array([False, True]), np.array([0, nodes], np.int32), noise, rows)
    return proposer.propose(batch)


WORKED = {ROOT: {A: 0.6, B: 0.3, C: 0.1}, A: {C: 0.7, D: 0.2, E: 0.1}, B: {E: 0.5, F: 0.4, C: 0.1}}


def test_the_worked_example_of_re_ranking() -> None:
    draft = drafted(WORKED, top_k=2, depth=2, nodes=3, d2t=None)
    assert split(draft) == [([], []), ([A, B, C], [-1, -1, 0])]
    assert draft.confidence == pytest.approx([0.6, 0.3, 0.42], rel=1e-5)
    bits = ancestor_bits_reference(torch.tensor(draft.parents), [3]).numpy()
    ends, seen = ancestor_lists(bits)
    rows = [[int(node in seen[a:b]) for node in range(4)] for a, b in itertools.pairwise(ends)]
    assert rows == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    assert depths(bits).tolist() == [0, 1, 1, 2]


def test_the_same_example_one_node_longer_and_one_shorter() -> None:
    """Next best after a .6, c .42, b .3 is e .15, then d and f .12 each, of which the earlier made wins."""
    assert split(drafted(WORKED, 2, 2, 2, None))[1] == ([A, C], [-1, 0])
    assert split(drafted(WORKED, 2, 2, 4, None))[1] == ([A, B, C, E], [-1, -1, 0, 1])
    assert split(drafted(WORKED, 2, 2, 5, None))[1] == ([A, B, C, D, E], [-1, -1, 0, 0, 1])
    assert split(drafted(WORKED, 2, 2, 60, None))[1] == ([A, B, C, D, E, F], [-1, -1, 0, 0, 1, 1])


def test_a_certain_child_never_pushes_its_parent_out() -> None:
    """A log-probability of exactly 0 ties with the parent, which stands first and wins."""
    certain = {ROOT: {A: 1.0}, A: {C: 1.0}, C: {D: 1.0}}
    for nodes in (1, 2, 3):
        tokens, parents = split(drafted(certain, 1, 3, nodes, None))[1]
        assert (tokens, parents) == ([A, C, D][:nodes], [-1, 0, 1][:nodes])


def test_draft_ids_become_target_ids_before_they_are_fed_back() -> None:
    """Offsets of 1: the head's id 0 is A, 1 is B, ...; a table keyed by target ids must still be followed."""
    shifted = {
        token: {child - 1: probability for child, probability in distribution.items()}
        for token, distribution in WORKED.items()
    }
    draft = drafted(shifted, 2, 2, 3, torch.ones(8, dtype=torch.int64))
    assert split(draft)[1] == ([A, B, C], [-1, -1, 0])


def test_default_states_are_the_worked_ones() -> None:
    found = {layers: aux_layers({}, EagleOptions(), layers, 3).layers for layers in (28, 32, 36, 64)}
    assert found == {28: (2, 14, 25), 32: (2, 16, 29), 36: (2, 18, 33), 64: (2, 32, 61)}
