"""Figures of a benchmark from its rows, as plain data: speeds, ratios with intervals, acceptance, times, identity."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from specdec_core.metrics import SpecMetrics
from specdec_engine.bench.intervals import Ratio, speed_ratio
from specdec_engine.bench.methods import PLAIN
from specdec_engine.bench.recorder import PHASES
from specdec_engine.bench.rows import Row

ALL: Final = "all"
SHOWN_DIFFERENCES: Final = 5  # in full, by arm; all are counted


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the figures of each concurrency, smallest first: its arms in order, plain decoding first.

    For an arm: `tokens_per_second` and `speed_up` over "all" and by task, the latter as value, low and high of its 90 %
    interval; `decode_speed_up` without steps that ran prompts; `prompts_at_once` on average; and what
    `_arm` adds. Units that an arm has not finished count for none.
    """
    found = []
    for concurrency in sorted({row.concurrency for row in rows}):
        chosen = [row for row in rows if row.concurrency == concurrency]
        labels = list(dict.fromkeys(row.arm for row in chosen))
        by_arm = {label: {row.unit: row for row in chosen if row.arm == label} for label in labels}
        units = sorted(set.intersection(*(set(each) for each in by_arm.values())))
        plain = [by_arm[PLAIN][unit] for unit in units]
        found.append(
            {
                "concurrency": concurrency,
                "units": len(units),
                "prompts": sum(len(row.prompts) for row in plain),
                "prompts_at_once": sum(len(row.prompts) for row in plain) / max(1, len(units)),
                "tasks": list(dict.fromkeys(row.task for row in plain)),
                "arms": [_arm(label, [by_arm[label][unit] for unit in units], plain) for label in labels],
            }
        )
    return found


def _arm(label: str, rows: Sequence[Row], plain: Sequence[Row]) -> dict[str, Any]:
    metrics = SpecMetrics()
    metrics.merge(_metrics(row) for row in rows)
    tasks = [ALL, *dict.fromkeys(row.task for row in plain)]
    pairs = {task: [(a, b) for a, b in zip(rows, plain, strict=True) if task in (ALL, a.task)] for task in tasks}
    return {
        "arm": label,
        "tokens_per_second": {task: _speed([a for a, _ in chosen]) for task, chosen in pairs.items()},
        "speed_up": {task: _ratio(chosen) for task, chosen in pairs.items()},
        "decode_speed_up": _decode_ratio(pairs[ALL]),
        "mean_acceptance_length": metrics.mean_acceptance_length,
        "acceptance_length_by_task": {task: _length([a for a, _ in chosen]) for task, chosen in pairs.items()},
        "tokens_per_step": metrics.tokens_per_step,
        "acceptance_rate": metrics.acceptance_rate,
        "acceptance_per_pos": metrics.acceptance_per_pos,
        "drafted_per_pos": metrics.drafted_per_pos,
        "failures": metrics.failures,
        "lossy": metrics.lossy,
        "accepted_lengths": _lengths(rows),
        "undrafted": sum(row.undrafted for row in rows),
        "drafted_per_part": metrics.drafted_per_part,
        "accepted_per_part": metrics.accepted_per_part,
        "part_ms_per_token": _part_times(rows),
        "ms_per_token": _times(rows),
        "forward_ms": _forwards(rows),
        "identity": _identity(rows),
    }


def _length(rows: Sequence[Row]) -> float | None:
    """Return ids emitted by a step that had drafts, on average; None where none had."""
    metrics = SpecMetrics()
    metrics.merge(_metrics(row) for row in rows)
    return metrics.mean_acceptance_length


def _metrics(row: Row) -> SpecMetrics:
    return SpecMetrics(**row.counters)


def _speed(rows: Sequence[Row]) -> float:
    return sum(row.tokens for row in rows) / sum(row.seconds for row in rows)


def _ratio(pairs: Sequence[tuple[Row, Row]]) -> dict[str, float | None]:
    columns = [(a.tokens, a.seconds, b.tokens, b.seconds) for a, b in pairs]
    return asdict(speed_ratio(*np.array(columns, np.float64).T))


def _decode_ratio(pairs: Sequence[tuple[Row, Row]]) -> dict[str, float | None] | None:
    """Return the ratio over steps without prompts; None where no unit had such steps."""
    columns = [
        (a.tokens - a.first_tokens, sum(a.phases.values()), b.tokens - b.first_tokens, sum(b.phases.values()))
        for a, b in pairs
    ]
    kept = [each for each in columns if min(each) > 0]
    return asdict(speed_ratio(*np.array(kept, np.float64).T)) if kept else None


def _lengths(rows: Iterable[Row]) -> list[list[int]]:
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update(dict(row.accepted_lengths))
    return [[length, count] for length, count in sorted(counts.items())]


def _part_times(rows: Sequence[Row]) -> list[float]:
    """Return milliseconds of drafting a token of each part of a method that is made of others."""
    tokens = max(1, sum(row.tokens for row in rows))
    return [1e3 * sum(seconds) / tokens for seconds in zip(*(row.part_seconds for row in rows), strict=True)]


def _times(rows: Sequence[Row]) -> dict[str, float]:
    """Return milliseconds a token by phase, of steps without prompts; `prompt` is the others', for each token."""
    tokens = max(1, sum(row.tokens for row in rows))
    parts = {phase: sum(row.phases[phase] for row in rows) for phase in PHASES}
    return {
        name: 1e3 * each / tokens for name, each in {**parts, "prompt": sum(r.prompt_seconds for r in rows)}.items()
    }


def _forwards(rows: Iterable[Row]) -> list[list[float]]:
    """Return [rows, mean milliseconds of the target's forward, forwards]."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0, 0.0])
    for row in rows:
        for width, count, seconds in row.forwards:
            sums[width][0] += count
            sums[width][1] += seconds
    return [[width, 1e3 * seconds / count, count] for width, (count, seconds) in sorted(sums.items())]


def _identity(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how many outputs were compared and differ, by verdict, and where the first of them do."""
    found = [
        {"prompt": prompt, **asdict(difference)}
        for row in rows
        for prompt, difference in zip(row.prompts, row.differences, strict=True)
        if difference is not None
    ]
    return {
        "compared": sum(len(row.prompts) for row in rows),
        "different": len(found),
        "verdicts": dict(Counter(each["verdict"] for each in found)),
        "first": found[:SHOWN_DIFFERENCES],
    }


def faults(summary: Sequence[dict[str, Any]]) -> int:
    """Return how many outputs differ from plain decoding's by more than rounding, where they must not."""
    return sum(arm["identity"]["verdicts"].get("fault", 0) for each in summary for arm in each["arms"])


def ratio_text(ratio: dict[str, float | None] | Ratio | None) -> str:
    """Return a ratio for people: `1.52 (1.31 to 1.70)`, without an interval where there is none."""
    if ratio is None:
        return "-"
    data = asdict(ratio) if isinstance(ratio, Ratio) else ratio
    value = f"{data['value']:.2f}"
    return value if data["low"] is None else f"{value} ({data['low']:.2f} to {data['high']:.2f})"
