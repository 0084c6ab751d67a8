"""What the figures of a benchmark come to, in sentences: which arm to take, and why another one is slower than none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from specdec_engine.bench.methods import PLAIN
from specdec_engine.bench.summary import ALL, ratio_text

RARE: Final = 0.2  # share of steps with drafts below which the method found next to nothing
POOR: Final = 0.35  # accepted of drafted tokens below which drafts are too long, or of no use


def advice(each: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about the arms of one concurrency; figures are those of `summarise`."""
    methods = [arm for arm in each["arms"] if arm["arm"] != PLAIN]
    if not methods:
        return
    best = max(methods, key=lambda arm: float(arm["speed_up"][ALL]["value"]))
    ratio = best["speed_up"][ALL]
    if all(_upper(arm["speed_up"][ALL]) <= 1 for arm in methods):
        yield "Do not speculate on prompts like these: every method here is slower than plain decoding."
    elif ratio["value"] <= 1:
        yield "No method here is measurably faster than plain decoding: measure more prompts, or do not speculate."
    elif ratio["low"] is None or ratio["low"] <= 1:
        yield f"Fastest is {best['arm']}, {ratio_text(ratio)} times plain; that may be chance, measure more prompts."
    else:
        yield f"Fastest is {best['arm']}, {ratio_text(ratio)} times plain."
    for arm in methods:
        if _upper(arm["speed_up"][ALL]) < 1:
            yield f"{arm['arm']} is slower than plain decoding, {ratio_text(arm['speed_up'][ALL])}: {_reason(arm)}."


def _upper(ratio: Mapping[str, float | None]) -> float:
    return float(ratio["high"] or ratio["value"] or 0.0)


def _reason(arm: Mapping[str, Any]) -> str:
    """Return why a method loses: it drafts seldom, wrongly, or at too high a price."""
    drafted = sum(count for _, count in arm["accepted_lengths"])
    share = drafted / max(1, drafted + arm["undrafted"])
    rate = arm["acceptance_rate"]
    if rate is None or share < RARE:
        return f"it had drafts in {100 * share:.0f} % of the steps, and looking for them costs time in all"
    if rate < POOR:
        return f"{100 * rate:.0f} % of its drafted tokens were accepted; a smaller num_speculative_tokens wastes fewer"
    times = arm["ms_per_token"]
    return (
        f"{100 * rate:.0f} % of its drafted tokens were accepted, which does not pay for {times['draft']:.2f} ms of "
        f"drafting and {times['target']:.2f} ms of forwards a token"
    )
