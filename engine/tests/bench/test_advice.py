"""What figures come to: which arm to take, when to take none, and why one loses."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_engine.bench.advice import advice


def arm(name: str, *ratio: float | None, drafts: int = 80, rate: float | None = 0.6) -> dict[str, Any]:
    value, low, high = ratio
    return {
        "arm": name,
        "speed_up": {"all": {"value": value, "low": low, "high": high}},
        "accepted_lengths": [[1, drafts]] if drafts else [],
        "undrafted": 100 - drafts,
        "acceptance_rate": rate,
        "ms_per_token": {"draft": 1.5, "target": 20.25},
    }


def said(*arms: dict[str, Any]) -> list[str]:
    return list(advice({"arms": [arm("plain", 1.0, 1.0, 1.0), *arms]}))


def test_the_fastest_arm_is_named_and_what_may_be_chance_is_called_so() -> None:
    (first,) = said(arm("a", 1.5, 1.3, 1.7), arm("b", 1.2, 1.1, 1.3))
    assert first == "Fastest is a, 1.50 (1.30 to 1.70) times plain."
    assert said(arm("a", 1.5, 0.9, 2.5)) == [
        "Fastest is a, 1.50 (0.90 to 2.50) times plain; that may be chance, measure more prompts."
    ]
    assert "may be chance" in said(arm("a", 1.5, None, None))[0], "one measurement is no interval"


def test_no_speculation_is_the_answer_only_where_every_arm_is_surely_slower() -> None:
    assert said(arm("a", 0.9, 0.8, 0.95))[0].startswith("Do not speculate on prompts like these")
    assert said(arm("a", 0.9, 0.7, 1.2)) == [
        "No method here is measurably faster than plain decoding: measure more prompts, or do not speculate."
    ]
    assert said() == []


@pytest.mark.parametrize(
    ("drafts", "rate", "reason"),
    [
        (3, 0.9, "a is slower than plain decoding, 0.80 (0.70 to 0.90): it had drafts in 3 % of the steps"),
        (0, None, "it had drafts in 0 % of the steps"),
        (80, 0.12, "12 % of its drafted tokens were accepted; a smaller num_speculative_tokens wastes fewer"),
        (80, 0.6, "does not pay for 1.50 ms of drafting and 20.25 ms of forwards a token"),
    ],
)
def test_an_arm_that_loses_is_told_why_row_97(drafts: int, rate: float | None, reason: str) -> None:
    _, why = said(arm("a", 0.8, 0.7, 0.9, drafts=drafts, rate=rate), arm("b", 1.1, 1.05, 1.15))
    assert reason in why
