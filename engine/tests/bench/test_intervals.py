"""Intervals of speed ratios: the value is that of sums, and nine of ten intervals hold the truth, however few units."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_engine.bench.intervals import speed_ratio, student_t


def test_the_ratio_is_of_sums_and_one_unit_has_no_interval() -> None:
    ratio = speed_ratio(np.array([10.0]), np.array([1.0]), np.array([10.0]), np.array([2.0]))
    assert (ratio.value, ratio.low, ratio.high) == (2.0, None, None)
    tokens, ones = np.array([10.0, 100.0]), np.ones(2)
    assert speed_ratio(tokens, ones, tokens, np.array([1.0, 3.0])).value == pytest.approx(2.0)


def test_units_that_all_say_the_same_leave_no_doubt() -> None:
    tokens, seconds = np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 3.0])
    ratio = speed_ratio(tokens, seconds, tokens, 1.5 * seconds)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("units", [2, 4, 12, 60])
def test_nine_of_ten_intervals_hold_the_truth(units: int) -> None:
    rng = np.random.default_rng(units)
    held = 0
    for _ in range(1000):
        tokens = rng.integers(32, 128, units).astype(float)
        plain = tokens * rng.lognormal(0, 0.1, units)
        mine = plain * rng.lognormal(np.log(0.5), 0.3, units)
        ratio = speed_ratio(tokens, mine, tokens, plain)
        assert ratio.low is not None and ratio.high is not None
        held += ratio.low <= 2 / np.exp(0.3**2 / 2) <= ratio.high
    assert 0.84 <= held / 1000 <= 0.94


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 6.314), (2, 2.920), (3, 2.353), (5, 2.015), (30, 1.697)])
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_t(0.95, degrees) == pytest.approx(quantile, abs=2e-3)


@pytest.mark.parametrize("bad", [[], [0.0, 1.0]])
def test_nothing_and_no_time_are_refused(bad: list[float]) -> None:
    ones = np.ones(len(bad))
    with pytest.raises(ValueError, match="at least one unit"):
        speed_ratio(ones, np.array(bad), ones, ones)
