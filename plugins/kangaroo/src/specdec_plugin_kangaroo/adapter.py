"""The network of Kangaroo: RMS norm, attention, residual, and an RMS norm before the target's head; reads no files.

Source: Liu et al., arXiv 2404.18911, section 3.2; Equationliu/Kangaroo, `kangaroo/adapter.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specdec_core.draft import Rows
from specdec_nn.cache.arena import KVArena
from specdec_nn.drafters.head_parts import aux_states
from specdec_nn.layers.block import Attention, RMSNorm
from specdec_nn.layers.rotary import Rotary
from specdec_nn.ops.attention.reference import AttentionStep

Layer = tuple[RMSNorm, Attention]
COMMITTED = 0  # depth of rows that only lend their keys and values
DRAFTED = 1  # depth of rows that are read


class Adapter:
    """The adapter over states R_E [N, H], each at its own position (`specdec_nn.drafters.hidden_state.RowHead`)."""

    def __init__(self, layers: Sequence[Layer], norm: RMSNorm, rotary: Rotary) -> None:
        """Take its layers in order, each with the norm in front of it, the norm behind them, and their positions."""
        self._layers, self._norm, self._rotary = layers, norm, rotary

    def features(self, rows: Rows) -> Tensor:
        """Return the target's states behind the exit layer, [N, H]."""
        return aux_states(rows)

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return what the target's head reads, [N, H]; for rows of depth `COMMITTED`, nothing of use.

        Of committed rows only keys and values are needed, so the last layer runs no attention for them.
        """
        turn, states = self._rotary.at(positions), features
        for norm, attention in self._layers[:-1]:
            states = states + attention.attend(norm(states), turn, arena, step)
        norm, attention = self._layers[-1]
        if depth == COMMITTED:
            attention.write(norm(states), turn, arena, step)
            return states
        return self._norm(states + attention.attend(norm(states), turn, arena, step))
