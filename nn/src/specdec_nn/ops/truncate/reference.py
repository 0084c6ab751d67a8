"""The truncate op, temperature, min-p, top-k and top-p in one, and its definition in torch; it knows no requests.

Which ids survive is exact: every backend keeps the same ones. Shares of a distribution are therefore compared as
integers: the weight exp(y - max) in units of 2^-40, made of float32 operations that are each rounded on their own. Sums
of integers do not depend on an order, so a row comes out the same whatever its neighbours and however it is cut up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_nn.device_copies import to_device
from specdec_nn.ops.constants import LOG2E

LN2_HIGH: Final = 0.693359375  # 355 / 512: its product with a small whole number is exact
LN2_LOW: Final = 0.6931471805599453 - LN2_HIGH
ROUNDER: Final = 1.5 * 2.0**23  # added and taken away again, it rounds a float32 to a whole number
EXP_COEFFICIENTS: Final = tuple(1.0 / n for n in (5040, 720, 120, 24, 6, 2, 1, 1))  # of exp(r), |r| <= ln(2) / 2
LEAST: Final = -64.0  # weights of logits this far below the largest are 0
MANTISSA_BITS: Final = 24
WEIGHT_BITS: Final = 40


@dataclass(slots=True)
class Truncation:
    """What is done to each of R rows.

    temperature  [R] float32 divisor of the logits, above 0
    min_p        [R] float64 least share of the largest probability, 0 = off
    top_k        [R] int64 ids that stay, 0 = off
    top_p        [R] float64 mass that stays, 1 = off
    """

    temperature: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]

    @property
    def floor(self) -> npt.NDArray[np.float32]:
        """What min_p asks of a logit's distance to the largest one, [R] float32."""
        with np.errstate(divide="ignore"):
            logs: npt.NDArray[np.float32] = np.log(self.min_p).astype(np.float32)
        return logs


def weights(distance: Tensor) -> Tensor:
    """Return exp(d) in units of 2^-40, rounded down, int64, for distances d <= 0 to the largest logit, float32."""
    d = distance.clamp_min(LEAST)
    n = (d * LOG2E + ROUNDER) - ROUNDER
    r = (d - n * LN2_HIGH) - n * LN2_LOW
    series = torch.full_like(r, EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        series = series * r + coefficient
    mantissa = (series * 2.0**MANTISSA_BITS).long()
    return (mantissa << (WEIGHT_BITS - MANTISSA_BITS)) >> (-n).long().clamp_max(63)


def truncate_reference(logits: Tensor, truncation: Truncation) -> Tensor:
    """Return scaled logits [R, V] float32, -inf where truncated; the given ones stay as they are. The op's definition.

    logits [R, V] of any float dtype, -inf where an id is excluded already, no NaN. In this order, with
    y = logit / temperature in float32:

    - min-p keeps ids with y - max >= log(min_p).
    - top-k keeps those that are at least the k-th largest of what is left: ties with it stay.
    - top-p takes the ids that are left from the largest on, the lowest id first among equals, until their weights
      reach top_p of the sum of all weights left. The first is always taken.

    A row whose largest logit is not finite is only scaled.
    """
    device = logits.device
    temperature, floor, top_k, top_p = (
        to_device(values, device).unsqueeze(1)
        for values in (truncation.temperature, truncation.floor, truncation.top_k, truncation.top_p)
    )
    y = logits.float() / temperature + 0.0  # no negative zeros: equal logits have equal bits
    ordered, ids = torch.sort(y, dim=-1, descending=True, stable=True)
    largest = ordered[:, :1]
    sound = torch.isfinite(largest)
    distance = torch.where(sound, ordered - largest, 0.0)
    kept = distance >= floor
    left = kept.sum(-1, keepdim=True)
    k = torch.where((top_k > 0) & (top_k < left), top_k, left)
    kept &= ordered >= ordered.gather(1, k - 1)
    mass = weights(distance) * kept
    total = mass.sum(-1, keepdim=True)
    wanted = torch.minimum((top_p * total.double()).ceil().long().clamp_min(1), total)
    before = mass.cumsum(-1) - mass
    kept &= (before < wanted) | (top_p >= 1)
    kept |= ~sound
    survives = torch.zeros_like(kept).scatter_(1, ids, kept)
    return y.masked_fill_(~survives, -torch.inf)
