"""The networks of EAGLE heads: how embeddings and the target's states become drafts' logits; it reads no files.

EAGLE-1 is arXiv 2401.15077, section 3.1; EAGLE-3 is arXiv 2503.01840, section 3.1. Rows come in the shifted layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.draft import Rows
from specdec_nn.cache.arena import KVArena
from specdec_nn.drafters.head_parts import Vocabulary, final_states
from specdec_nn.layers.block import Block, Linear, RMSNorm
from specdec_nn.layers.rotary import Rotary
from specdec_nn.ops.attention.reference import AttentionStep


@dataclass(slots=True)
class Layer:
    """A block and the norm before its attention, None where there is none."""

    block: Block
    norm: RMSNorm | None


class Eagle1Head:
    """[embedding ; state] through fc and plain blocks; its output imitates the target's final state."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        fc: Linear,
        layers: Sequence[Layer],
        rotary: Rotary,
        *,
        input_norms: tuple[RMSNorm, RMSNorm] | None,
        final_norm: RMSNorm | None,
        width_scale: float,
    ) -> None:
        """Take the parts.

        input_norms  of embedding and state before fc (MiniCPM), None elsewhere
        final_norm   of families whose heads normalise their output (Llama-4, Mistral), None elsewhere
        width_scale  divisor of states on their way in and back (MiniCPM), 1 elsewhere
        """
        self.d2t = vocabulary.d2t
        self._vocabulary, self._fc, self._layers, self._rotary = vocabulary, fc, layers, rotary
        self._input_norms, self._final_norm, self._width_scale = input_norms, final_norm, width_scale

    def features(self, rows: Rows) -> Tensor:
        """Return the target's final states [N, H]."""
        states = final_states(rows)
        return states if self._width_scale == 1.0 else states / self._width_scale

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return the head's states [N, H]; see `specdec_nn.drafters.hidden_state.FeatureHead`."""
        embedding = self._vocabulary.embed(tokens)
        if self._input_norms is not None:
            embedding, features = self._input_norms[0](embedding), self._input_norms[1](features)
        x = self._fc(torch.cat([embedding, features], dim=-1))
        turn = self._rotary.at(positions)
        for layer in self._layers:
            x = layer.block(x if layer.norm is None else layer.norm(x), x, turn, arena, step)
        return x if self._final_norm is None else self._final_norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d]."""
        return self._vocabulary.logits(states)

    def feedback(self, states: Tensor) -> Tensor:
        """Return the states themselves: they stand for the target's."""
        return states if self._width_scale == 1.0 else states / self._width_scale


class Eagle3Head:
    """Embedding and a mix of the target's states side by side into the first block; its output stays its own."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        mix: Callable[[Rows], Tensor],
        layers: Sequence[Layer],
        rotary: Rotary,
        norms: tuple[RMSNorm, RMSNorm, RMSNorm],
        *,
        norm_before_residual: bool,
        norm_output: bool,
    ) -> None:
        """Take the parts; `norms` are those of the embedding, of the state, and before the head.

        norm_before_residual  the first residual is the normed state
        norm_output           states go back normed ("EAGLE-3.1")
        """
        self.d2t = vocabulary.d2t
        self._vocabulary, self._mix, self._layers, self._rotary = vocabulary, mix, layers, rotary
        self._embedding_norm, self._state_norm, self._final_norm = norms
        self._norm_before_residual, self._norm_output = norm_before_residual, norm_output

    def features(self, rows: Rows) -> Tensor:
        """Return what fc makes of the target's states, [N, H_d]."""
        return self._mix(rows)

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return the head's states [N, H_d] before the final norm.

        See `specdec_nn.drafters.hidden_state.FeatureHead`.
        """
        state = self._state_norm(features)
        turn = self._rotary.at(positions)
        first, *rest = self._layers
        x = torch.cat([self._embedding_norm(self._vocabulary.embed(tokens)), state], dim=-1)
        x = first.block(x, state if self._norm_before_residual else features, turn, arena, step)
        for layer in rest:
            x = layer.block(x if layer.norm is None else layer.norm(x), x, turn, arena, step)
        return x

    def logits(self, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d]."""
        return self._vocabulary.logits(self._final_norm(states))

    def feedback(self, states: Tensor) -> Tensor:
        """Return the states before the final norm, or after it."""
        return self._final_norm(states) if self._norm_output else states
