"""Drafting with a network that reads the ids drafted so far: chains, static trees, trees of whole sequences.

It knows no network and no weights. What the network makes of a path of ids is a *state*, one row each.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.draft import Draft, IntArray
from specdec_core.token_tree import TokenTree
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import Round
from specdec_nn.drafters.tree_walk import Level, newest_ids, walk

Ids = npt.NDArray[np.integer[Any]]


class SequenceNetwork(Protocol):
    """A recurrent drafter; N rows, W the width of its states, V_d its vocabulary."""

    def begin(self, states: Tensor) -> Tensor:
        """Return the states [N, W] of no ids, from the target's states [N, H] that the newest ids were drawn from."""

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states behind one id more, from those before it and the target ids [N] int64.

        `depth` counts the ids before: 0 for the newest one. The width may change from depth to depth.
        """

    def logits(self, depth: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of the states behind `depth` drafts and the newest id."""


class SequencePlan:
    """Drafts one id after the other, each from the state that the one before left."""

    def __init__(self, network: SequenceNetwork, sampler: DraftSampler, d2t: Tensor | None) -> None:
        """Take the network, what picks an id from logits, and the offsets [V_d] of its ids."""
        self._network, self._sampler, self._d2t = network, sampler, d2t

    def __call__(self, drafts: Round) -> Draft:
        """Return chains of `limits` ids."""
        picks = self._sampler.begin(drafts, self._d2t)
        active, tokens = np.arange(len(drafts.names)), newest_ids(drafts)
        states = self._network.begin(drafts.states)
        for depth in range(int(drafts.limits.max())):
            states = self._network.step(depth, states, tokens)
            tokens = picks.pick(self._network.logits(depth, states), active, depth)
            going = np.flatnonzero(drafts.limits[active] > depth + 1)
            chosen = to_device(going, states.device)
            active, states, tokens = active[going], states[chosen], tokens[chosen]
        return picks.draft()


class SequenceTreePlan:
    """Drafts a static tree; only nodes with children are run through the network."""

    def __init__(self, tree: TokenTree, network: SequenceNetwork, sampler: DraftSampler, d2t: Tensor | None) -> None:
        """Take the tree, the network, what picks children from logits, and the offsets [V_d] of its ids."""
        self._tree, self._network, self._sampler, self._d2t = tree, network, sampler, d2t

    def __call__(self, drafts: Round) -> Draft:
        """Return the tree for each request, cut to the first nodes where the limit is smaller."""
        states = self._network.begin(drafts.states)[:, None]

        def logits(level: Level) -> Tensor:
            nonlocal states
            behind = self._network.step(level.depth, states[:, level.parents].flatten(0, 1), level.tokens.flatten())
            states = behind.view(len(drafts.names), len(level.nodes), -1)
            return self._network.logits(level.depth, behind)

        return walk(self._tree, drafts, self._sampler.begin(drafts, self._d2t), logits)


def sequence_trees(ids: Ids, limits: IntArray) -> Draft:
    """Return one tree a request from whole sequences, in which what they begin with in common stands once.

    ids     [A, n, D] target ids of the sequences of each request, the best first
    limits  [A] the most nodes
    Nodes stand in the order of the sequences, so that the best ones stay whole where a request may have fewer nodes.
    """
    requests, _, depths = ids.shape
    keys = np.empty(ids.shape, np.int64)  # equal where request, depth and all ids so far are
    key, span, before = np.arange(requests, dtype=np.int64)[:, None], int(ids.max()) + 1, 0
    for depth in range(depths):
        found, back = np.unique((key * span + ids[:, :, depth]).ravel(), return_inverse=True)
        key = back.reshape(ids.shape[:2])
        keys[:, :, depth] = before + key
        before += len(found)
    _, first, back = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    nodes = np.sort(first)  # places in [A, n, D] at which a node stands for the first time, in order
    number = np.searchsorted(nodes, first)[back].reshape(ids.shape)  # of the node at each place, over all requests
    owner = nodes // (ids.shape[1] * depths)
    start = np.searchsorted(owner, np.arange(requests))[owner]
    above = np.concatenate([np.full((*number.shape[:2], 1), -1), number[..., :-1]], axis=-1).ravel()[nodes]
    taken = np.arange(len(nodes)) - start < limits[owner]
    return Draft(
        lengths=np.bincount(owner[taken], minlength=requests).tolist(),
        tokens=ids.ravel()[nodes][taken].astype(np.int32),
        parents=np.where(above < 0, -1, above - start)[taken].astype(np.int32),
    )
