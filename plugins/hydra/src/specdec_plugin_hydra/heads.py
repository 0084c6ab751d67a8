"""The networks of Hydra: heads over a state and the drafts before, and the prefix layer; they read no files.

Source: Ankner et al., arXiv 2402.05109, sections 3 (heads) and 4 (prefix layer, deeper heads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_core.draft import Rows
from specdec_nn.cache.arena import KVArena
from specdec_nn.layers.block import Block, RMSNorm
from specdec_nn.layers.rotary import Rotary
from specdec_nn.ops.attention.reference import AttentionStep

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class HydraHead:
    """One head: z = R c + SiLU(W c) of its input c, then z + SiLU(W z) block by block, then the logits of z.

    residual  R, [N, in] -> [N, H]; None: c itself
    blocks    the W, the first [N, in] -> [N, H], all others [N, H] -> [N, H]
    output    [N, H] -> [N, V_d]
    """

    residual: Linear | None
    blocks: Sequence[Linear]
    output: Linear

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of inputs [N, in]."""
        first, *others = self.blocks
        states = (inputs if self.residual is None else self.residual(inputs)) + F.silu(first(inputs))
        for block in others:
            states = states + F.silu(block(states))
        return self.output(states)


class HydraNetwork:
    """All heads (`specdec_nn.drafters.sequences.SequenceNetwork`): the states of a path are the input of its next head.

    Head i reads the state, the embedding of the newest id and those of the i drafts after it, side by side. Heads that
    are not grounded read the state alone.
    """

    def __init__(self, heads: Sequence[HydraHead], table: Tensor, *, grounded: bool) -> None:
        """Take the heads in order, and the embedding [n, H]; ids beyond its end take its last row."""
        self._heads, self._table, self._grounded = heads, table, grounded

    def begin(self, states: Tensor) -> Tensor:
        """Return the states [N, H] themselves."""
        return states

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states with the embeddings of ids [N] beside them."""
        if not self._grounded:
            return states
        return torch.cat([states, self._table[tokens.clamp(max=len(self._table) - 1)]], dim=-1)

    def logits(self, depth: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of head `depth`."""
        return self._heads[depth](states)


class PrefixLayer:
    """A decoder layer over the target's states, without their ids, and a norm (Hydra++).

    It is a `specdec_nn.drafters.hidden_state.RowHead`: its rows are committed positions, never drafts.
    """

    def __init__(
        self, states: Callable[[Rows], Tensor], block: Block, norms: tuple[RMSNorm, RMSNorm], rotary: Rotary
    ) -> None:
        """Take which states of rows are read, the block, the norms in front of it and behind it, and its positions."""
        self._states, self._block, self._rotary = states, block, rotary
        self._first, self._last = norms

    def features(self, rows: Rows) -> Tensor:
        """Return the target's states [N, H]."""
        return self._states(rows)

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return what heads read, [N, H]."""
        turn = self._rotary.at(positions)
        return self._last(self._block(self._first(features), features, turn, arena, step))
