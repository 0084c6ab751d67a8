"""Drafts in the shape of a static tree: the ranks of a node's children are given, their tokens come from the head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.token_tree import TokenTree
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import FeatureHead, Round

DraftRows = Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]


class StaticTreePlan:
    """Goes through the tree level by level; only nodes with children are run through the head.

    With drawn drafts the children of a node are drawn without replacement from one law, in the order of their ranks.
    """

    def __init__(self, tree: TokenTree, sampler: DraftSampler, draft_rows: DraftRows) -> None:
        """Take the tree, what picks children, and the `draft_rows` kernel."""
        self._tree, self._sampler, self._draft_rows = tree, sampler, draft_rows

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return the tree for each request, cut to the first nodes where the limit is smaller."""
        tree, requests, device = self._tree, len(drafts.names), drafts.states.device
        size = min(len(tree), int(drafts.limits.max()))
        tokens = torch.zeros((requests, len(tree)), dtype=torch.int64, device=device)
        q_row = np.full((requests, len(tree)), -1, np.int32)
        starts = torch.from_numpy(drafts.positions.astype(np.int64)).to(device)
        picks = self._sampler.begin(drafts, head.d2t)
        states, place = drafts.states[:, None], {-1: -1}
        frontier: tuple[int, ...] = (-1,)
        for depth in range(tree.depth):
            width = max(len(tree.children[node]) for node in frontier)
            ids, laws = picks.children(head.logits(states.flatten(0, 1)), len(frontier), width, depth)
            for at, node in enumerate(frontier):
                children = list(tree.children[node])
                tokens[:, children] = ids[:, at, : len(children)]
                q_row[:, children] = laws[:, at, : len(children)]
            below = tuple(node for node in tree.level(depth + 1) if tree.children[node][0] < size)
            if not below:
                break
            parents = [frontier.index(tree.parents[node]) for node in below]
            rows = [place[tree.parents[node]] for node in below]
            place |= {node: len(place) - 1 + i for i, node in enumerate(below)}
            index = torch.tensor(parents, device=device).expand(requests, -1)
            features, flat, positions = self._draft_rows(
                head.feedback(states), index, tokens[:, list(below)], starts, depth
            )
            step = cache.append(drafts.names, [len(below)] * requests, parents=np.tile(rows, requests))
            states = head.forward(flat, features, positions, cache.arena, step, depth + 1)
            states, frontier = states.view(requests, len(below), -1), below
        lengths = np.minimum(drafts.limits, len(tree))
        taken = np.arange(len(tree))[None, :] < lengths[:, None]
        parents_of = np.broadcast_to(np.array(tree.parents, np.int32), taken.shape)
        return picks.tree(lengths, tokens.cpu().numpy().astype(np.int32)[taken], parents_of[taken], q_row[taken])
