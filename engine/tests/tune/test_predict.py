"""Predicted seconds and speed-ups from scripted costs: the numbers that the formula gives by hand."""

from __future__ import annotations

import pytest

from specdec_engine.tune.costs import ForwardCost, MethodCost, StepTime, StepTimes
from specdec_engine.tune.predict import Measured, PromptRun, decode_seconds, predict
from specdec_engine.tune.shorter import Seen

ONE_ROW = Seen(0, 0, 1)
FORWARD = ForwardCost({1: [(1, 0.010), (5, 0.014)], 4: [(4, 0.012), (20, 0.028)]})


def test_a_forward_costs_what_was_measured_and_a_straight_line_between() -> None:
    assert FORWARD.seconds(1, 1) == 0.010
    assert FORWARD.seconds(1, 5) == 0.014
    assert FORWARD.seconds(1, 3) == pytest.approx(0.012)
    assert FORWARD.seconds(4, 12) == pytest.approx(0.020)
    assert FORWARD.seconds(1, 9) == pytest.approx(0.018)  # the last line goes on
    assert FORWARD.seconds(4, 2) == 0.012  # never below the fewest rows
    assert FORWARD.seconds(2, 5) == pytest.approx(0.014 * 2 / 3 + 0.013 / 3)  # between one and four requests


def test_calibration_brings_the_sum_of_real_forwards() -> None:
    times = [StepTime(1, 1, 0, 0.0, 0.020, 0.0), StepTime(1, 5, 4, 0.0, 0.028, 0.0)]
    calibrated = FORWARD.calibrated(times)
    assert calibrated.scale == pytest.approx(2.0)
    assert sum(calibrated.seconds(time.requests, time.rows) for time in times) == pytest.approx(0.048)
    assert FORWARD.calibrated([]) == FORWARD


def test_fitted_lines_give_back_the_costs_that_made_the_times() -> None:
    cost = MethodCost(0.001, 0.0002, 0.0005, 0.0003, 0.0001)
    times = [
        StepTime(
            requests,
            rows,
            limit,
            cost.draft + cost.draft_per_request * requests + cost.draft_per_token * limit,
            0.01,
            cost.rest + cost.rest_per_row * rows,
        )
        for requests, rows, limit in ((1, 9, 8), (1, 3, 2), (4, 20, 8), (4, 12, 2), (1, 1, 8))
    ]
    fitted = StepTimes(times).cost()
    for requests, rows, limit in ((1, 5, 4), (8, 40, 8), (2, 2, 1)):
        assert fitted.seconds(requests, rows, limit) == pytest.approx(cost.seconds(requests, rows, limit))


def test_a_slope_below_zero_or_of_what_did_not_vary_is_none() -> None:
    fitted = StepTimes([StepTime(1, 1, 4, 0.002, 0.0, 0.003), StepTime(1, 5, 4, 0.002, 0.0, 0.001)]).cost()
    assert (fitted.draft_per_request, fitted.draft_per_token, fitted.rest_per_row) == (0.0, 0.0, 0.0)
    assert fitted.seconds(3, 7, 9) == pytest.approx(0.004)


def test_requests_side_by_side_share_a_forward_until_the_shorter_one_ends() -> None:
    cost = MethodCost(draft=0.001, rest_per_row=0.0001)
    requests = [[Seen(4, 2, 3), Seen(4, 4, 5)], [ONE_ROW]]
    first = FORWARD.seconds(2, 5 + 1) + 0.001 + 6 * 0.0001
    second = FORWARD.seconds(1, 5) + 0.001 + 5 * 0.0001
    assert decode_seconds(requests, 4, FORWARD, cost) == pytest.approx(first + second)
    assert decode_seconds([], 4, FORWARD, cost) == 0.0


def test_the_speed_up_is_the_ratio_of_predicted_tokens_per_second() -> None:
    plain = Measured({0: [PromptRun(0.1, [ONE_ROW] * 10)]}, MethodCost())
    method = Measured({4: [PromptRun(0.1, [Seen(4, 4, 5), Seen(4, 4, 5)])]}, MethodCost(draft=0.001))
    ratio = predict(method, 4, plain, [(0,)], FORWARD)
    assert ratio.value == pytest.approx((0.1 + 10 * 0.010) / (0.1 + 2 * 0.015))


def test_a_drafter_that_is_never_right_is_predicted_to_lose_at_every_limit() -> None:
    plain = Measured({0: [PromptRun(0.1, [ONE_ROW] * 10)] * 4}, MethodCost())
    method = Measured({4: [PromptRun(0.1, [Seen(4, 0, 1)] * 10)] * 4}, MethodCost(draft=0.001))
    values = [predict(method, limit, plain, [(0, 1), (2, 3)], FORWARD).value for limit in (1, 2, 4)]
    assert all(value < 1 for value in values) and values == sorted(values, reverse=True)


def test_the_run_with_the_nearest_larger_limit_tells_of_a_limit() -> None:
    measured = Measured(
        {8: [PromptRun(0.0, [Seen(8, 0, 1)])], 2: [PromptRun(0.0, [Seen(2, 1, 2)])]},
        MethodCost(),
    )
    assert [measured.tokens((0,), limit) for limit in (1, 2, 3, 8, 9)] == [3, 3, 2, 2, 2]
