"""The proposer `early_exit`: one id after the other from the target's first layers; keeps no rows itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.errors import TargetError
from specdec_core.first_layers import FirstLayers
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import spread
from specdec_plugin_early_exit.options import EarlyExitOptions
from specdec_plugin_early_exit.usefulness import Usefulness

Indices = npt.NDArray[np.int64]


def make(ctx: MethodContext[EarlyExitOptions], build: ProposerBuild) -> EarlyExit:
    """Build the proposer; raises TargetError where the target's first layers cannot be run by themselves."""
    count = build.traits.first_layers
    try:
        layers = build.first_layers()
    except TargetError as error:
        message = f"{ctx.method} with exit_layer {count} cannot draft here: {error}; use another method"
        raise TargetError(message) from error
    return EarlyExit(layers, DraftSampler.of(build), Usefulness(count), ctx.options.draft_confidence_threshold)


@dataclass(slots=True)
class _Wanted:
    """The requests that get drafts in this step: their batch rows [A], views, and the most drafts of each [A]."""

    index: Indices
    requests: list[RequestView]
    limits: Indices
    batch: BatchView


class EarlyExit:
    """Drafts chains (Elhoushi et al., arXiv 2404.16710, section 4.3): k drafts are k passes of one row a request."""

    def __init__(
        self, layers: FirstLayers, sampler: DraftSampler, usefulness: Usefulness, threshold: float | None
    ) -> None:
        """Take the layers; a draft ends behind an id whose probability was below `threshold`."""
        self._layers = layers
        self._sampler = sampler
        self._usefulness = usefulness
        self._threshold = threshold

    def start(self, request: RequestView) -> None:
        """Have nothing to prepare: what the target has run is all that is read."""

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Let go what is held of the request."""
        self._layers.release(request)
        self._usefulness.forget(request.id)

    def close(self) -> None:
        """Let everything go."""
        self._layers.close()

    def memory_bytes(self) -> int:
        """Return what the host holds for the drafts, besides the target's own keys and values."""
        return self._layers.memory_bytes()

    def propose(self, batch: BatchView) -> Draft:
        """Return chains for the requests that may have drafts and whose rows there is room for."""
        wanting: Indices = np.flatnonzero(batch.max_draft > 0)
        if not len(wanting):
            return Draft.empty(len(batch))
        requests = [batch.request(i) for i in wanting.tolist()]
        with torch.inference_mode():
            granted = np.array(self._layers.begin(requests, batch.max_draft[wanting].tolist()), np.int64)
            there = np.flatnonzero(granted)
            if not len(there):
                return Draft.empty(len(batch))
            wanted = _Wanted(wanting[there], [requests[i] for i in there.tolist()], granted[there], batch)
            draft = self._chains(wanted)
        self._usefulness.see(wanted.requests, draft)
        return spread(draft, wanted.index, len(batch))

    def _chains(self, wanted: _Wanted) -> Draft:
        """Draft one id after the other, each from the row of the one before."""
        picks = self._sampler.begin(wanted, None)
        ids = torch.tensor([int(request.tokens[-1]) for request in wanted.requests])
        active: Indices = np.arange(len(wanted.requests))
        for depth in range(int(wanted.limits.max())):
            logits = self._layers.run([wanted.requests[i] for i in active.tolist()], depth, ids)
            tokens = picks.pick(logits, active, depth)
            going = np.flatnonzero((wanted.limits[active] > depth + 1) & self._sure(logits, tokens))
            if not len(going):
                break
            active, ids = active[going], tokens[torch.from_numpy(going).to(tokens.device)]
        return picks.draft()

    def _sure(self, logits: Tensor, tokens: Tensor) -> npt.NDArray[np.bool_]:
        """Return behind which ids [a] a draft goes on. An unsure id itself is drafted: its probability is reported."""
        if self._threshold is None:
            return np.ones(len(tokens), np.bool_)
        chosen = torch.log_softmax(logits.float(), dim=-1).gather(1, tokens[:, None])[:, 0].exp()
        sure: npt.NDArray[np.bool_] = (chosen >= self._threshold).cpu().numpy()
        return sure
