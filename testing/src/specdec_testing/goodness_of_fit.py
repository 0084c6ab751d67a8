"""Chi-square tests of counts against known probabilities, with small expected cells pooled; knows nothing of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

MIN_EXPECTED: Final = 5.0  # the usual least expected count of a cell


@dataclass(frozen=True)
class Fit:
    """Result of a test: the statistic, its degrees of freedom, the p-value, and the cell that is furthest off."""

    statistic: float
    freedom: int
    p_value: float
    worst: str


def count(draws: npt.ArrayLike, size: int) -> npt.NDArray[np.int64]:
    """Return how often each id below `size` was drawn; an id outside raises ValueError."""
    ids = np.asarray(draws, np.int64).ravel()
    if len(ids) and (ids.min() < 0 or ids.max() >= size):
        message = f"draws lie in {ids.min()} .. {ids.max()}, expected 0 .. {size - 1}"
        raise ValueError(message)
    return np.bincount(ids, minlength=size)


def fit(counts: npt.ArrayLike, distribution: npt.ArrayLike) -> Fit:
    """Test counts [V], or [rows, V] with a distribution for each row, against probabilities of the same shape.

    Cells with an expected count below 5 are pooled, row by row. A pool that is still below 5 joins the smallest cell
    of its row and is tested by its own binomial tail as well, since many draws of rare ids would else go unseen. The
    p-value is that of both kinds of test together (Bonferroni). An id of probability 0 that was drawn gives 0.
    """
    observed = np.atleast_2d(np.asarray(counts, np.float64))
    expected = np.atleast_2d(np.asarray(distribution, np.float64))
    if observed.shape != expected.shape:
        message = f"counts are {list(observed.shape)} and the distribution is {list(expected.shape)}"
        raise ValueError(message)
    impossible = np.argwhere((expected == 0) & (observed > 0))
    if len(impossible):
        row, token = (int(index) for index in impossible[0])
        worst = f"row {row}, id {token}: drawn {observed[row, token]:g} times with probability 0"
        return Fit(float("inf"), 1, 0.0, worst)
    statistic, freedom, worst, furthest, tails = 0.0, 0, "none", -1.0, [1.0]
    for row, (got, probabilities) in enumerate(zip(observed, expected, strict=True)):
        cells, want, names = _pooled(got, probabilities * got.sum() / probabilities.sum())
        parts = (cells - want) ** 2 / want
        statistic += float(parts.sum())
        freedom += max(len(parts) - 1, 0)
        if len(parts) and parts.max() > furthest:
            furthest, at = float(parts.max()), int(parts.argmax())
            worst = f"row {row}, {names[at]}: {cells[at]:g} counted, {want[at]:.1f} expected"
        tails.append(_rare_tail(got, probabilities / probabilities.sum()))
    if freedom == 0:
        return Fit(statistic, 0, 1.0, worst)
    p_cells, p_rare = float(stats.chi2.sf(statistic, freedom)), len(observed) * min(tails)
    if p_rare < p_cells:
        worst = f"row {int(np.argmin(tails)) - 1}, rare ids: drawn too often"
    return Fit(statistic, freedom, min(1.0, 2 * min(p_cells, p_rare)), worst)


def _rare_tail(got: npt.NDArray[np.float64], probabilities: npt.NDArray[np.float64]) -> float:
    """Return the chance of at least so many rare ids, where their pool is too small for a cell of its own."""
    rare = (probabilities * got.sum() < MIN_EXPECTED) & (probabilities > 0)
    if not 0 < probabilities[rare].sum() * got.sum() < MIN_EXPECTED:
        return 1.0
    return float(stats.binom.sf(got[rare].sum() - 1, got.sum(), probabilities[rare].sum()))


def assert_follows(counts: npt.ArrayLike, distribution: npt.ArrayLike, significance: float = 1e-4) -> Fit:
    """Raise AssertionError if counts like these, or further off, have a probability below `significance`."""
    result = fit(counts, distribution)
    if result.freedom == 0:
        message = "too few counts to say anything: no row has two cells with an expected count of 5"
        raise AssertionError(message)
    if result.p_value < significance:
        message = (
            f"counts do not follow the distribution: chi-square {result.statistic:.1f} with {result.freedom} degrees "
            f"of freedom, p = {result.p_value:.2e} < {significance:g}; furthest off is {result.worst}"
        )
        raise AssertionError(message)
    return result


def _pooled(
    got: npt.NDArray[np.float64], want: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], list[str]]:
    """Return observed and expected counts with small cells pooled, and the names of the cells."""
    large = want >= MIN_EXPECTED
    names = [f"id {token}" for token in np.flatnonzero(large)]
    cells, expected = list(got[large]), list(want[large])
    rest = float(want[~large].sum())
    if rest >= MIN_EXPECTED or not cells:
        cells.append(got[~large].sum())
        expected.append(rest)
        names.append("rare ids")
    elif rest > 0:
        smallest = int(np.argmin(expected))
        cells[smallest] += got[~large].sum()
        expected[smallest] += rest
        names[smallest] += " and rare ids"
    keep = np.asarray(expected) > 0
    kept = [name for name, kept in zip(names, keep, strict=True) if kept]
    return np.asarray(cells)[keep], np.asarray(expected)[keep], kept
