"""Intervals of a ratio of two speeds that were measured on the same units; knows no engine and no file.

The ratio is of sums, and its logarithm is taken to be linear in the units' shares of the sums. What the units spread
around that gives the standard error, and Student's t with one degree of freedom less than units the interval's ends.
Source: Cochran, "Sampling Techniques" (3rd edition, 1977), chapter 6, for the error of a ratio of sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

COVERAGE: Final = 0.9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """A ratio over all units, with the ends of its interval; None for one unit, which tells nothing of the spread."""

    value: float
    low: float | None
    high: float | None


def speed_ratio(tokens: Floats, seconds: Floats, plain_tokens: Floats, plain_seconds: Floats) -> Ratio:
    """Return how many times the plain tokens per second an arm has, all arrays [units] in the same order.

    The ratio is of sums, so that long units count for what they take. Raises ValueError for arrays of different length,
    none, or tokens and seconds that are not above 0.
    """
    columns = np.stack([np.asarray(each, np.float64) for each in (tokens, seconds, plain_tokens, plain_seconds)])
    count = columns.shape[1]
    if count == 0 or not (columns > 0).all():
        message = "expected at least one unit, and tokens and seconds above 0"
        raise ValueError(message)
    mine, my_time, theirs, their_time = columns.sum(axis=1)
    value = float(mine / my_time / (theirs / their_time))
    if count == 1:
        return Ratio(value, None, None)
    shares = columns / columns.mean(axis=1, keepdims=True)
    spread = shares[0] - shares[1] - shares[2] + shares[3]
    error = math.sqrt(float(np.square(spread).sum()) / (count * (count - 1)))
    reach = student_t((1 + COVERAGE) / 2, count - 1) * error
    return Ratio(value, value * math.exp(-reach), value * math.exp(reach))


def student_t(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t; of three degrees and more to three digits.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.5; exact for one and two degrees.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        inside = 2 * probability - 1
        return inside * math.sqrt(2 / (1 - inside * inside))
    z, n = NormalDist().inv_cdf(probability), degrees
    terms = (
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4),
    )
    return z + sum(terms)
