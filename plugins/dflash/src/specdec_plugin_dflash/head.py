"""The network of a DFlash head: states of the target become keys and values, a block of rows becomes logits; no files.

After arXiv 2602.06036. A committed row has keys and values in every layer, made of the target's states alone, and
no output. The rows of a block begin with the newest id, go on with the mask id, and see all committed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec_core.draft import Rows
from specdec_nn.cache.arena import KVArena
from specdec_nn.drafters.draft_sampler import largest
from specdec_nn.drafters.head_parts import Vocabulary
from specdec_nn.layers.block import Block, RMSNorm
from specdec_nn.layers.rotary import Rotary
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_plugin_dflash.convolution import BlockConvolution


@dataclass(slots=True)
class Layer:
    """A block, the norm before its attention, and whether rows of a draft see only those before them.

    `convolutions` are those around attention and MLP, None in a head whose rows exchange nothing else.
    """

    block: Block
    norm: RMSNorm
    causal: bool
    convolutions: tuple[BlockConvolution, BlockConvolution] | None = None

    def __call__(
        self, x: Tensor, place: Tensor, turn: tuple[Tensor, Tensor], arena: KVArena, step: AttentionStep
    ) -> Tensor:
        """Return rows [N, H_d] behind the layer; `place` [N] is the index of each in its block."""
        if self.convolutions is None:
            return self.block(self.norm(x), x, turn, arena, step)
        attention, mlp = self.convolutions
        x = x + attention.around(self.norm(x), place, lambda z: self.block.attend(z, turn, arena, step))
        return x + mlp.around(self.block.normed(x), place, self.block.mlp)


class BlockHead:
    """Target states in, keys and values out; then one pass over a block of rows, each an output state."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        mix: Callable[[Rows], Tensor],
        layers: Sequence[Layer],
        rotary: Rotary,
        norms: tuple[RMSNorm, RMSNorm],
    ) -> None:
        """Take the parts: `mix` makes states [N, H_d] of rows, `norms` are those of these states and of the output."""
        self.d2t = vocabulary.d2t
        self._vocabulary, self._mix, self._layers, self._rotary = vocabulary, mix, layers, rotary
        self._state_norm, self._final_norm = norms
        self._any_causal = any(layer.causal for layer in layers)

    def features(self, rows: Rows) -> Tensor:
        """Return what all layers make keys and values of, [N, H_d]."""
        return self._state_norm(self._mix(rows))

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Write keys and values of committed rows; return their features, as such rows have no output."""
        turn = self._rotary.at(positions)
        for layer in self._layers:
            layer.block.write(features, turn, arena, step)
        return features

    def run(self, tokens: Tensor, positions: Tensor, place: Tensor, arena: KVArena, step: AttentionStep) -> Tensor:
        """Return normed output states [N, H_d] of the rows of blocks; `step` has them see each other.

        `place` [N] int64 is the index of each row in its block.
        """
        one_way = replace(step, seg_mutual=None) if self._any_causal else step
        x, turn = self._vocabulary.embed(tokens), self._rotary.at(positions)
        for layer in self._layers:
            x = layer(x, place, turn, arena, one_way if layer.causal else step)
        return self._final_norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of normed states."""
        return self._vocabulary.logits(states)

    def feedback(self, states: Tensor) -> Tensor:
        """Return the states themselves; in these methods no draft is made from another's state."""
        return states


class MarkovHead:
    """What the draft before adds to the logits of a place, and how sure the head is of a place (docs/dflash.md)."""

    def __init__(
        self,
        w1: Tensor,
        w2: Tensor,
        project: Callable[[Tensor], Tensor],
        confidence: tuple[Tensor, Tensor] | None,
        topk: int | None,
    ) -> None:
        """Take W1 [V, r], W2 [V_d, r] and what multiplies with all of it, the confidence head, and the candidates.

        confidence  its weight [1, H_d or H_d + r] and bias [1]
        topk        how many ids of a place may be drafted, None for all
        """
        self._w1, self._w2, self._project, self._confidence, self._topk = w1, w2, project, confidence, topk

    @property
    def is_confident(self) -> bool:
        """Whether there is a confidence head."""
        return self._confidence is not None

    def candidates(self, logits: Tensor) -> Tensor | None:
        """Return the ids [N, m] that may be drafted in places with base logits [N, V_d], None for all."""
        return None if self._topk is None else largest(logits, self._topk)[1]

    def before(self, tokens: Tensor) -> Tensor:
        """Return what target ids [N] leave to the next place, [N, r]."""
        return self._w1[tokens]

    def logits(self, base: Tensor, before: Tensor, candidates: Tensor | None) -> Tensor:
        """Return base logits [N, V_d] with the bias of the ids before, and -inf outside of the candidates."""
        if candidates is None:
            return base + self._project(before)
        biased = base.gather(1, candidates) + torch.einsum("nmr,nr->nm", self._w2[candidates], before)
        return torch.full_like(base, float("-inf")).scatter(1, candidates, biased)

    def confidence(self, states: Tensor, before: Tensor) -> Tensor:
        """Return the estimated acceptance [N] of the drafts in places with states [N, H_d]."""
        assert self._confidence is not None  # asked for only where it is there
        weight, bias = self._confidence
        seen = torch.cat([states, before], dim=-1) if weight.shape[1] > states.shape[1] else states
        return torch.sigmoid(seen.float() @ weight[0] + bias)
