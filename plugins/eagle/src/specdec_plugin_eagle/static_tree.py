"""Drafts in the shape of a static tree: the ranks of a node's children are given, their tokens come from the head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.token_tree import TokenTree
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import FeatureHead, Round
from specdec_nn.drafters.tree_walk import Level, walk

DraftRows = Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


class StaticTreePlan:
    """Goes through the tree level by level; only nodes with children are run through the head.

    With drawn drafts the children of a node are drawn without replacement from one distribution, in the order of their
    ranks.
    """

    def __init__(self, tree: TokenTree, sampler: DraftSampler, draft_rows: DraftRows) -> None:
        """Take the tree, what picks children, and the `draft_rows` kernel."""
        self._tree, self._sampler, self._draft_rows = tree, sampler, draft_rows

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return the tree for each request, cut to the first nodes where the limit is smaller."""
        requests, device = len(drafts.names), drafts.states.device
        starts = to_device(drafts.positions.astype(np.int64), device)
        states, place = drafts.states[:, None], {-1: -1}  # of nodes: their rows of this round

        def logits(level: Level) -> Tensor:
            nonlocal states
            if level.depth:
                rows = [place[self._tree.parents[node]] for node in level.nodes]
                place.update({node: len(place) - 1 + i for i, node in enumerate(level.nodes)})
                index = to_device(np.array(level.parents, np.int64), device).expand(requests, -1)
                features, flat, positions = self._draft_rows(
                    head.feedback(states), index, level.tokens, starts, level.depth - 1
                )
                step = cache.append(drafts.names, [len(level.nodes)] * requests, parents=np.tile(rows, requests))
                made = head.forward(flat, features, positions, cache.arena, step, level.depth)
                states = made.view(requests, len(level.nodes), -1)
            return head.logits(states.flatten(0, 1))

        return walk(self._tree, drafts, self._sampler.begin(drafts, head.d2t), logits)
