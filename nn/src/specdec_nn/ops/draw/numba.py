"""The draw op on a CPU: numpy's argmax, torch's softmax and the race in compiled code."""

from __future__ import annotations

from torch import Tensor

from specdec_core.noise import Noise
from specdec_nn.ops.draw.reference import Rows, draw_by
from specdec_nn.ops.race.numba import race


def draw(logits: Tensor, noise: Noise, greedy: Rows) -> Tensor:
    """Return one id a row, [R] int64; see `draw_reference` for arguments, shapes and meaning."""
    return draw_by(race, logits.float(), noise, greedy)
