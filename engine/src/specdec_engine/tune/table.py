"""What `specdec tune` prints: options by concurrency, and what to do, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specdec_engine.bench.summary import ratio_text
from specdec_engine.bench.table import aligned
from specdec_engine.tune.choose import GAIN, Choice, Option

SHOWN: Final = 8  # options of a concurrency; all are in the report


def lines(options: Sequence[Option], choice: Choice, left_out: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines."""
    for name, reason in left_out.items():
        yield f"left out: {name}: {reason}"
    for size in sorted({option.concurrency for option in options}):
        order = [option for option in options if option.concurrency == size]
        order.sort(key=lambda option: (option.measured is None, -option.speed_up))
        yield f"{size} at once"
        rows = [
            (option.label, str(option.limit), ratio_text(option.predicted), ratio_text(option.measured))
            for option in order[:SHOWN]
        ]
        yield from aligned([("method", "k", "expected x plain (90 %)", "measured x plain (90 %)"), *rows])
        yield ""
    if not choice.speculates:
        yield f"do not speculate: no method is at least {GAIN} times as fast as plain decoding on these prompts"
        return
    parts = ", ".join(f"k = {limit} with {size} at once" for size, limit in sorted(choice.limits.items()))
    yield f"use {choice.label}: {parts}"
