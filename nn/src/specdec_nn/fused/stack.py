"""A recognised decoder: from ids to final states in one call of the compiled pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_nn.cache.arena import KVArena
from specdec_nn.fused.passes import Pass
from specdec_nn.fused.recognise import Stack
from specdec_nn.fused.watch import Watch
from specdec_nn.ops.attention.reference import AttentionStep


class FusedStack:
    """The layers of one model, as one function of ids, positions and the tables of attention."""

    def __init__(self, stack: Stack) -> None:
        """Make the pass; raises Unfit where it cannot run here."""
        self.stack = stack
        self._watch = Watch(stack.decoder)
        self._pass = Pass(stack.shape, stack.blocks, stack.norm)

    def serves(self, rows: int) -> bool:
        """Return whether a call of so many rows runs here: as many as the linear op keeps exact.

        A model whose modules were exchanged or got hooks since is left to its modules, with one line in the log.
        """
        return self._pass.serves(rows) and self._watch.untouched()

    def run(
        self, ids: Tensor, positions: Tensor, step: AttentionStep, arena: KVArena, taps: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run rows ids [N] int64 at positions [N] int64 through all layers, writing keys and values as `step` has them.

        Returns final states [N, H], and the residual stream [N, H] at the input of each layer of `taps`, where the
        number of layers is that after the last one. Call it in inference mode.
        """
        stack = self.stack
        state = stack.embedding(ids)
        if stack.factor != 1.0:
            state = state * stack.factor
        state = state.contiguous()
        tapped = {k: torch.empty_like(state) for k in taps}
        return self._pass.run(state, None, self._turns(state, positions), step, arena, tapped), tapped

    def _turns(self, state: Tensor, positions: Tensor) -> list[Tensor]:
        """Return cosines and sines [N, width] of each type of layer, one after the other."""
        at = positions.unsqueeze(0)
        found: list[Tensor] = []
        for kind in self._pass.ropes:
            pair = self.stack.rotary(state, at, kind) if kind else self.stack.rotary(state, at)
            found += [part[0].to(state.dtype).contiguous() for part in pair]
        return found
