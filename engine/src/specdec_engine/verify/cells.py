"""Counts of ids against the probabilities they should have: a chi-square test that allows for rounding; torch only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

LEAST_EXPECTED: Final = 5.0  # the usual least expected count of a cell

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """Result of a test. `worst` is the cell that is furthest off, in words; `freedom` 0: too few counts for a test."""

    statistic: float
    freedom: int
    p_value: float
    worst: str


def fit(counts: Sequence[Floats], probabilities: Sequence[Floats], noise: float) -> Fit:
    """Test rows of counts against rows of probabilities of the same length.

    Cells with an expected count below 5 are put together, row by row. `noise` is how far a probability may be off by
    rounding, as a share of it: the variance of a cell with the expected count E is E + (noise E)^2, so that the chance
    of a false alarm is at most that of the chi-square distribution. An id of probability 0 that was counted gives 0.
    """
    statistic, freedom, worst, furthest = 0.0, 0, "none", -1.0
    for row, (got, distribution) in enumerate(zip(counts, probabilities, strict=True)):
        if (got[distribution == 0] > 0).any():
            return Fit(float("inf"), 1, 0.0, f"row {row}: an id of probability 0 was emitted")
        if not got.sum():
            continue
        cells, expected, names = _pooled(got, distribution / distribution.sum() * got.sum())
        parts = (cells - expected) ** 2 / (expected + (noise * expected) ** 2)
        statistic += float(parts.sum())
        freedom += max(len(parts) - 1, 0)
        if len(parts) > 1 and parts.max() > furthest:
            furthest, at = float(parts.max()), int(parts.argmax())
            worst = f"row {row}, {names[at]}: counted {cells[at]:.0f}, expected {expected[at]:.1f}"
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    p_value = float(torch.special.gammaincc(half[0], half[1])) if freedom else 1.0
    return Fit(statistic, freedom, p_value, worst)


def _pooled(got: Floats, expected: Floats) -> tuple[Floats, Floats, list[str]]:
    """Return counts and expected counts, small cells put together, and what each cell is."""
    large = expected >= LEAST_EXPECTED
    cells, wanted = list(got[large]), list(expected[large])
    names = [f"place {place}" for place in np.flatnonzero(large)]
    rest = float(expected[~large].sum())
    if rest >= LEAST_EXPECTED:
        cells.append(got[~large].sum())
        wanted.append(rest)
        names.append("the rare ids")
    elif cells and not large.all():
        smallest = int(np.argmin(wanted))
        cells[smallest] += got[~large].sum()
        wanted[smallest] += rest
        names[smallest] += " and the rare ids"
    return np.asarray(cells, np.float64), np.asarray(wanted, np.float64), names
