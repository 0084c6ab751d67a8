"""Figures of a replay from its scores, as plain data and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specdec_core.metrics import SpecMetrics
from specdec_engine.bench.table import MOST_TASKS, aligned
from specdec_engine.replay.run import Score

HEADINGS: Final = (
    "method",
    "tokens a step",
    "accepted length",
    "drafted",
    "accepted",
    "share",
    "steps with a draft",
    "ms a step",
)

UNANSWERED: Final = (
    "{arm} learns from the target's answers; traces have {share} of those that an engine would show it, none at "
    "rejected drafts. In an engine it is worth more than this as a rule; `specdec bench` measures it"
)


def summarise(label: str, scores: Mapping[str, Score], parts: Sequence[str], failures: int) -> dict[str, Any]:
    """Return a method's figures: the counters of `SpecMetrics` with its rates, time, and by task and part.

    `seconds` is the time of all calls for drafts, `ms_per_step` that of one; `tokens_per_step` by task. `answered` is
    the share of verified rows at which the traces tell what the target answered, None for methods that do not ask.
    """
    metrics = SpecMetrics(failures=failures)
    metrics.merge(score.metrics for score in scores.values())
    seconds = sum(score.seconds for score in scores.values())
    answered = sum(score.answered for score in scores.values())
    verified = answered + metrics.drafted - metrics.accepted
    counts = zip(metrics.drafted_per_part, metrics.accepted_per_part, strict=True)
    return {
        "arm": label,
        "tokens": sum(score.tokens for score in scores.values()),
        **metrics.as_json(),
        "seconds": seconds,
        "ms_per_step": 1e3 * seconds / metrics.steps if metrics.steps else None,
        "tasks": {task: score.metrics.tokens_per_step for task, score in scores.items()},
        "answered": answered / verified if answered else None,
        "parts": {f"{part}.{parts[part]}": list(each) for part, each in enumerate(counts)},
    }


def lines(figures: Sequence[Mapping[str, Any]], traces: int) -> Iterator[str]:
    """Yield the lines of the tables: all methods, and their tokens a step by task where there are several."""
    tokens = figures[0]["tokens"] if figures else 0
    yield f"{traces} traces, {tokens} tokens"
    yield from aligned([HEADINGS, *(_row(arm) for arm in figures)])
    tasks = list(figures[0]["tasks"]) if figures else []
    if 1 < len(tasks) <= MOST_TASKS:
        yield ""
        named = [task or "(none)" for task in tasks]
        yield from aligned(
            [("tokens a step", *named), *((arm["arm"], *(_number(arm["tasks"][t]) for t in tasks)) for arm in figures)]
        )
    for arm in figures:
        if arm["answered"] is not None:
            yield UNANSWERED.format(arm=arm["arm"], share=_percent(arm["answered"]))
        for part, (drafted, accepted) in arm["parts"].items():
            yield f"{arm['arm']}, part {part}: {accepted} of {drafted} drafted tokens accepted"


def _row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    rate = arm["acceptance_rate"]
    share = arm["drafts"] / arm["steps"] if arm["steps"] else None
    return (
        arm["arm"] + (f" ({arm['failures']} calls failed)" if arm["failures"] else ""),
        _number(arm["tokens_per_step"]),
        _number(arm["mean_acceptance_length"]),
        str(arm["drafted"]),
        str(arm["accepted"]),
        _percent(rate),
        _percent(share),
        "-" if arm["ms_per_step"] is None else f"{arm['ms_per_step']:.3f}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
