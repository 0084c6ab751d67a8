"""How Medusa heads become drafts: a chain with one id a head, or a static tree with several; reads no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.token_tree import TokenTree
from specdec_nn.device_copies import columns_of, side_by_side, to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import Round
from specdec_plugin_medusa.heads import MedusaHead


class HeadChainPlan:
    """Drafts one id from each head; no head knows what the others draft."""

    def __init__(self, heads: Sequence[MedusaHead], sampler: DraftSampler, d2t: Tensor | None) -> None:
        """Take the heads in order, what picks an id from logits, and the offsets [V_d] of their ids."""
        self._heads, self._sampler, self._d2t = heads, sampler, d2t

    def __call__(self, drafts: Round) -> Draft:
        """Return chains of `limits` ids."""
        picks = self._sampler.begin(drafts, self._d2t)
        for depth in range(int(drafts.limits.max())):
            active = np.flatnonzero(drafts.limits > depth)
            states = drafts.states[to_device(active, drafts.states.device)]
            picks.pick(self._heads[depth](states), active, depth)
        return picks.draft()


class HeadTreePlan:
    """Drafts a static tree: nodes of one depth and rank have the same id, whatever stands above them.

    Drawn ids of a depth come from one distribution without replacement, in the order of their ranks.
    """

    def __init__(self, tree: TokenTree, heads: Sequence[MedusaHead], sampler: DraftSampler, d2t: Tensor | None) -> None:
        """Take the tree, a head for each of its levels, what picks ids, and the offsets [V_d] of their ids."""
        self._heads, self._sampler, self._d2t = heads, sampler, d2t
        self._parents = np.array(tree.parents, np.int32)
        self._depth = np.array([len(path) for path in tree.paths]) - 1
        self._rank = np.array([path[-1] for path in tree.paths])

    def __call__(self, drafts: Round) -> Draft:
        """Return the tree for each request, cut to the first nodes where the limit is smaller."""
        size = min(int(drafts.limits.max()), len(self._parents))
        picks = self._sampler.begin(drafts, self._d2t)
        columns = []
        for depth in range(1 + int(self._depth[:size].max())):
            ranks = self._rank[:size][self._depth[:size] == depth]
            ids, distributions = picks.children(self._heads[depth](drafts.states), 1, 1 + int(ranks.max()), depth)
            columns.append((columns_of(ids[:, 0], ranks), columns_of(distributions[:, 0], ranks)))
        tokens, q_row = (side_by_side(part) for part in zip(*columns, strict=True))
        return picks.tree(np.minimum(drafts.limits, size), tokens, self._parents[:size], q_row)
