"""One MTP module: how a token and a state become a state of its own, and that the target's logits; it reads no files.

All families have this one form, that of DeepSeek-V3 (arXiv 2412.19437, section 2.2). Rows come in the shifted layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.draft import Rows
from specdec_core.sources import TargetHandle
from specdec_nn.cache.arena import KVArena
from specdec_nn.layers.block import Linear, RMSNorm
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_plugin_mtp.heads.blocks import FlatBlock
from specdec_plugin_mtp.heads.wiring import Wiring


class MtpModule:
    """A head after `specdec_nn.drafters.hidden_state.FeatureHead`; embedding and LM head are the target's."""

    d2t: Tensor | None = None

    def __init__(
        self,
        wiring: Wiring,
        target: TargetHandle,
        *,
        embedding_norm: RMSNorm,
        state_norm: RMSNorm,
        projection: Linear,
        block: FlatBlock,
        final_norm: RMSNorm | None,
    ) -> None:
        """Take the parts."""
        self._wiring, self._target = wiring, target
        self._embedding_norm, self._state_norm, self._projection = embedding_norm, state_norm, projection
        self._block, self._final_norm = block, final_norm

    def features(self, rows: Rows) -> Tensor:
        """Return the target's states [N, H]: those after its last norm, or the one layer that the traits ask for."""
        if rows.aux is not None:
            return rows.aux[:, 0]
        assert rows.hidden is not None  # the traits ask for the one or the other
        return rows.hidden

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return what the next rows are fed with, [N, H]: the block's output, before or after the final norm."""
        embedding = self._target.embed(tokens)
        if self._wiring.masks_first:
            embedding = embedding.masked_fill((positions == 0).unsqueeze(-1), 0.0)
        parts = [self._embedding_norm(embedding), self._state_norm(features)]
        x = self._projection(torch.cat(parts[::-1] if self._wiring.state_first else parts, dim=-1))
        out = self._block(x, positions, arena, step)
        return self._final_norm(out) if self._final_norm is not None and self._wiring.feeds == "post" else out

    def logits(self, states: Tensor) -> Tensor:
        """Return the target's logits [N, V] of states, after the final norm if there is one."""
        if self._final_norm is not None and self._wiring.feeds == "pre":
            states = self._final_norm(states)
        return self._target.compute_logits(states)

    def feedback(self, states: Tensor) -> Tensor:
        """Return the states themselves."""
        return states
