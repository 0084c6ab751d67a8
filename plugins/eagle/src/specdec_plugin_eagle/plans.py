"""How an EAGLE head's states become drafts: chains, one parallel pass, static trees, dynamic trees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec_core.context import ProposerBuild
from specdec_core.draft import Draft
from specdec_core.token_tree import TokenTree
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import ChainPlan, FeatureHead, Plan, Round
from specdec_plugin_eagle.dynamic_tree import DynamicTreePlan
from specdec_plugin_eagle.options import EagleOptions
from specdec_plugin_eagle.static_tree import StaticTreePlan


def round_rows(options: EagleOptions, k: int) -> int:
    """Return how many rows the head runs for one request between two steps, beyond the committed ones."""
    return k if options.tree_top_k is None else max(k, options.tree_top_k * min(options.tree_depth, k))


def make_plan(options: EagleOptions, build: ProposerBuild, mask: tuple[int, Tensor] | None) -> Plan:
    """Return the plan that a configuration asks for."""
    kernels, device = build.kernels, build.target.device
    if options.tree_top_k is not None:
        expand, rows = (kernels.get(op, device) for op in ("tree_expand", "draft_rows"))
        return DynamicTreePlan(options.tree_top_k, options.tree_depth, expand, rows)
    sampler = DraftSampler.of(build)
    if mask is not None:
        return ParallelPlan(sampler, *mask)
    if options.speculative_token_tree is None or build.traits.shape == "chain":
        return ChainPlan(sampler)
    return StaticTreePlan(TokenTree(options.speculative_token_tree), sampler, kernels.get("draft_rows", device))


class ParallelPlan:
    """All drafts from one pass over rows of a mask token (P-EAGLE): the rows do not know what the others draft."""

    def __init__(self, sampler: DraftSampler, token: int, features: Tensor) -> None:
        """Take what picks tokens, the mask id, and the mask's features [1, H]."""
        self._sampler, self._token, self._features = sampler, token, features

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens: the first from the last committed row, the others from mask rows."""
        picks = self._sampler.begin(drafts, head.d2t)
        everyone = np.arange(len(drafts.names))
        picks.pick(head.logits(drafts.states), everyone, 0)
        masked = np.flatnonzero(drafts.limits > 1)
        if not len(masked):
            return picks.draft()
        counts = drafts.limits[masked] - 1
        offsets = np.concatenate([np.arange(count) for count in counts.tolist()])
        owner = np.repeat(masked, counts)
        device = drafts.states.device
        positions = to_device(drafts.positions[owner].astype(np.int64) + offsets, device)
        step = cache.append([drafts.names[i] for i in masked.tolist()], counts.tolist())
        tokens = torch.full((len(owner),), self._token, dtype=torch.int64, device=device)
        features = self._features.expand(len(owner), -1)
        logits = head.logits(head.forward(tokens, features, positions, cache.arena, step, 0))
        for depth in range(1, int(drafts.limits.max())):
            rows = np.flatnonzero(offsets == depth - 1)
            picks.pick(logits[to_device(rows, device)], owner[rows], depth)
        return picks.draft()
