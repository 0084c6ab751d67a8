"""The proposer `early_exit`: one id after the other from the target's first layers; keeps no rows itself."""

from __future__ import annotations

import numpy as np
import torch

from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.draft import BatchView, Draft, FinishReason, RequestView
from specdec_core.errors import TargetError
from specdec_core.first_layers import FirstLayers
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import spread
from specdec_nn.drafters.layer_chains import LayerChains
from specdec_plugin_early_exit.options import EarlyExitOptions
from specdec_plugin_early_exit.usefulness import Usefulness


def make(ctx: MethodContext[EarlyExitOptions], build: ProposerBuild) -> EarlyExit:
    """Build the proposer; raises TargetError where the target's first layers cannot be run by themselves."""
    count = build.traits.first_layers
    try:
        layers = build.first_layers()
    except TargetError as error:
        message = f"{ctx.method} with exit_layer {count} cannot draft here: {error}; use another method"
        raise TargetError(message) from error
    return EarlyExit(layers, DraftSampler.of(build), Usefulness(count), ctx.options.draft_confidence_threshold)


class EarlyExit:
    """Drafts chains (Elhoushi et al., arXiv 2404.16710, section 4.3): k drafts are k passes of one row a request."""

    def __init__(
        self, layers: FirstLayers, sampler: DraftSampler, usefulness: Usefulness, threshold: float | None
    ) -> None:
        """Take the layers; a draft ends behind an id whose probability was below `threshold`."""
        self._layers = layers
        self._chains = LayerChains(layers, sampler, threshold)
        self._usefulness = usefulness

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
        wanting = np.flatnonzero(batch.max_draft > 0)
        if not len(wanting):
            return Draft.empty(len(batch))
        with torch.inference_mode():
            draft = self._chains.draft(batch, wanting, self._layers.run)
        self._usefulness.see([batch.request(i) for i in wanting.tolist()], draft)
        return spread(draft, wanting, len(batch))
