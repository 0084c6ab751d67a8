"""The tables that `specdec bench` prints, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specdec_engine.bench.advice import advice
from specdec_engine.bench.methods import PLAIN
from specdec_engine.bench.summary import ALL, ratio_text

MOST_TASKS: Final = 24  # in tables and pictures; the JSON file has all
HEADINGS: Final = ("arm", "tokens/s", "x plain (90 %)", "decoding only", "accepted length", "accepted", "outputs")


def lines(summary: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of all tables: for each concurrency the arms, and by task, if there are several, their gain."""
    for each in summary:
        together = f", {each['prompts_at_once']:.1f} at once" if each["concurrency"] > 1 else ""
        yield f"concurrency {each['concurrency']}: {each['prompts']} prompts{together}"
        yield from aligned([HEADINGS, *(table_row(arm) for arm in each["arms"])])
        if 1 < len(each["tasks"]) <= MOST_TASKS:
            yield ""
            yield from aligned(_by_task(each))
            yield ""
            yield from aligned(_lengths_by_task(each))
        yield from _differences(each)
        yield from advice(each)
        yield ""


def outputs_text(identity: Mapping[str, Any]) -> str:
    """Return what became of the comparison with plain decoding, in a few words."""
    if not identity["different"]:
        return f"{identity['compared']} of {identity['compared']} identical"
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in identity["verdicts"].items())
    return f"{identity['different']} of {identity['compared']} differ: {verdicts}"


def table_row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    """Return an arm's cells under `HEADINGS`."""
    speed = f"{arm['tokens_per_second'][ALL]:.1f}"
    if arm["arm"] == PLAIN:
        return (PLAIN, speed, "1", "1", "-", "-", "-")
    length, rate = arm["mean_acceptance_length"], arm["acceptance_rate"]
    return (
        arm["arm"] + (" (lossy)" if arm["lossy"] else ""),
        speed,
        ratio_text(arm["speed_up"][ALL]),
        ratio_text(arm["decode_speed_up"]),
        "-" if length is None else f"{length:.2f}",
        "-" if rate is None else f"{100 * rate:.0f} %",
        outputs_text(arm["identity"]) + (f"; {arm['failures']} steps failed" if arm["failures"] else ""),
    )


def _by_task(each: Mapping[str, Any]) -> list[Sequence[str]]:
    found: list[Sequence[str]] = [("x plain", *each["tasks"])]
    for arm in each["arms"]:
        if arm["arm"] != PLAIN:
            found.append((arm["arm"], *(ratio_text(arm["speed_up"][task]) for task in each["tasks"])))
    return found


def _lengths_by_task(each: Mapping[str, Any]) -> list[Sequence[str]]:
    found: list[Sequence[str]] = [("accepted length", *each["tasks"])]
    for arm in each["arms"]:
        if arm["arm"] != PLAIN:
            lengths = [arm["acceptance_length_by_task"][task] for task in each["tasks"]]
            found.append((arm["arm"], *("-" if length is None else f"{length:.2f}" for length in lengths)))
    return found


def _differences(each: Mapping[str, Any]) -> Iterator[str]:
    for arm in each["arms"]:
        for first in arm["identity"]["first"][:1]:
            yield (
                f"{arm['arm']}: first difference in prompt {first['prompt']} at output index {first['index']} "
                f"({first['plain']} against {first['other']}): {first['verdict']}"
            )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of cells as lines, columns below each other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
