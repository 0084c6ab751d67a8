"""The proposer `kangaroo`: rows run in the target's first layers, then in the adapter; it reads no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Draft, FinishReason, RequestView
from specdec_core.first_layers import FirstLayers
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import HiddenStateDrafter, Round
from specdec_nn.drafters.layer_chains import LayerChains
from specdec_plugin_kangaroo.adapter import DRAFTED, Adapter


class Kangaroo(HiddenStateDrafter[Adapter]):
    """Drafts chains with two exits: the layers' and that of an id that the adapter is unsure of (arXiv 2404.18911).

    Committed rows come with the target's own states. Rows of drafts get theirs from the target's first layers, and are
    dropped after the round.
    """

    def __init__(self, adapter: Adapter, cache: DraftCache, layers: FirstLayers, plan: AdapterPlan) -> None:
        """Take the adapter and its cache, the layers, and what drafts with all of them."""
        super().__init__(adapter, cache, plan)
        self._layers = layers

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Give the request's rows back."""
        super().finish(request, reason)
        self._layers.release(request)

    def close(self) -> None:
        """Give everything back."""
        super().close()
        self._layers.close()

    def memory_bytes(self) -> int:
        """Return the size of the adapter's cache, and of what the host holds for the layers."""
        return super().memory_bytes() + self._layers.memory_bytes()


class AdapterPlan:
    """Drafts one id after the other: a row in the layers, the same row in the adapter, the target's head."""

    def __init__(
        self,
        layers: FirstLayers,
        sampler: DraftSampler,
        threshold: float | None,
        logits: Callable[[Tensor], Tensor],
    ) -> None:
        """Take the layers, what picks ids, below which probability a draft ends, and the target's head."""
        self._layers, self._logits = layers, logits
        self._chains = LayerChains(layers, sampler, threshold)

    def __call__(self, drafts: Round, head: Adapter, cache: DraftCache) -> Draft:
        """Return chains of at most `limits` ids."""
        place = dict(zip(drafts.names, drafts.positions.tolist(), strict=True))

        def next_row(requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
            states = self._layers.states(requests, depth, ids)
            names = [request.id for request in requests]
            positions = torch.tensor([place[name] + depth for name in names], device=states.device)
            step = cache.append(names, [1] * len(names))
            ids = ids.to(states.device)
            return self._logits(head.forward(ids, states, positions, cache.arena, step, DRAFTED))

        return self._chains.draft(drafts.batch, drafts.index.astype(np.int64), next_row)
