"""One Medusa head: residual layers over a state, then logits (arXiv 2401.10774, section 2.1); it reads no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]


class MedusaHead:
    """z = x, then z + SiLU(W z + b) layer by layer, then the logits of z.

    Head k looks at the state from which the target drew the newest id, and predicts the (k + 1)-th id after that one.
    """

    def __init__(self, layers: Sequence[Linear], output: Linear, logit_scale: float) -> None:
        """Take residual layers [N, H] -> [N, H], output [N, H] -> [N, V_d], and the factor of the logits."""
        self._layers, self._output, self._logit_scale = layers, output, logit_scale

    def __call__(self, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of the target's final states [N, H]."""
        for layer in self._layers:
            states = states + F.silu(layer(states))
        logits = self._output(states)
        return logits if self._logit_scale == 1.0 else logits * self._logit_scale
