"""Chains of drafts whose rows run in the target's first layers; it knows no method, and keeps nothing of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, RequestView
from specdec_core.first_layers import FirstLayers
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import Indices, spread

# Returns draft logits [a, V] of the next row of each request: (requests, how many rows they have run, ids [a]).
NextRow = Callable[[Sequence[RequestView], int, Tensor], Tensor]


class _Wanted:
    """The requests that draft: their batch rows [A]."""

    def __init__(self, index: Indices, batch: BatchView) -> None:
        self.index, self.batch = index, batch


class LayerChains:
    """Drafts one id after the other, each from the row of the one before, as many as the host has room for."""

    def __init__(self, layers: FirstLayers, sampler: DraftSampler, threshold: float | None) -> None:
        """Take the layers; a draft ends behind an id whose probability was below `threshold`."""
        self._layers, self._sampler, self._threshold = layers, sampler, threshold

    def draft(self, batch: BatchView, index: Indices, next_row: NextRow) -> Draft:
        """Return chains for the requests in rows `index` [A] of a batch, each of `max_draft` >= 1 ids at most."""
        requests = [batch.request(i) for i in index.tolist()]
        limits = np.array(self._layers.begin(requests, batch.max_draft[index].tolist()), np.int64)
        there = np.flatnonzero(limits)
        if not len(there):
            return Draft.empty(len(requests))
        picks = self._sampler.begin(_Wanted(index[there], batch), None)
        active = np.arange(len(there))
        ids = torch.tensor([int(requests[i].tokens[-1]) for i in there.tolist()])
        for depth in range(int(limits.max())):
            logits = next_row([requests[i] for i in there[active].tolist()], depth, ids)
            tokens = picks.pick(logits, active, depth)
            going = np.flatnonzero((limits[there[active]] > depth + 1) & self._sure(logits, tokens))
            if not len(going):
                break
            active, ids = active[going], tokens[to_device(going, tokens.device)]
        return spread(picks.draft(), there, len(requests))

    def _sure(self, logits: Tensor, tokens: Tensor) -> npt.NDArray[np.bool_]:
        """Return behind which ids [a] a draft goes on. An unsure id itself is drafted: its probability is reported."""
        if self._threshold is None:
            return np.ones(len(tokens), np.bool_)
        chosen = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[:, None])[:, 0].exp()
        sure: npt.NDArray[np.bool_] = (chosen >= self._threshold).cpu().numpy()
        return sure
