"""The network of a recurrent drafter: how drafts are carried on, and the head over them; it reads no files.

Source: Zhang et al., arXiv 2403.09919, section 3, and the code of its authors, apple/ml-recurrent-drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """s' = SiLU(W E[id] + U s + b).

    draft  W, [N, H] -> [N, H]
    state  U with b, [N, H] -> [N, H]
    """

    draft: Linear
    state: Linear


@dataclass(frozen=True, slots=True)
class RedrafterNetwork:
    """Reads [h ; s] (`specdec_nn.drafters.sequences.SequenceNetwork`; states are [N, 2 H]).

    h is the target's final state that the newest id was drawn from, the same for all drafts; s begins with zeros and
    takes in the newest id and each draft. The head over both: a projection if it has one, x + SiLU(A x + a) layer by
    layer, then the logits of x.

    table       [n, H] the target's embedding; ids beyond its end take its last row
    recurrence  None: s' = s + E[id]
    projection  [N, 2 H] -> [N, X], None where X = 2 H
    layers      [N, X] -> [N, X]
    output      [N, X] -> [N, V_d]
    """

    table: Tensor
    recurrence: Recurrence | None
    projection: Linear | None
    layers: Sequence[Linear]
    output: Linear

    def begin(self, states: Tensor) -> Tensor:
        """Return [h ; 0] of the target's states [N, H]."""
        return torch.cat([states, torch.zeros_like(states)], dim=-1)

    def step(self, depth: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return [h ; s'] behind ids [N] int64."""
        context, carried = states.chunk(2, dim=-1)
        drafts = self.table[tokens.clamp(max=len(self.table) - 1)]
        if self.recurrence is None:
            carried = drafts + carried
        else:
            carried = F.silu(self.recurrence.draft(drafts) + self.recurrence.state(carried.contiguous()))
        return torch.cat([context, carried], dim=-1)

    def logits(self, depth: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of [h ; s]."""
        x = states if self.projection is None else self.projection(states)
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return self.output(x)
