"""Measures what predictions rest on: traces of every arm, costs of its steps, and the cost of forwards."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specdec_engine.bench.arms import Arm
from specdec_engine.bench.measure import Work
from specdec_engine.bench.progress import Bar
from specdec_engine.tune.costs import ForwardCost, StepTime, StepTimes
from specdec_engine.tune.forwards import ForwardTimer
from specdec_engine.tune.predict import Measured, PromptRun
from specdec_engine.tune.tracing import run_traced

TURNS: Final = 5  # of timed forwards, after one that is not counted
ROWS: Final = (1, 2, 3, 4, 6, 9, 13, 17, 25, 33, 49, 65)  # of each request


@dataclass(frozen=True)
class Profiled:
    """An arm that is measured: which candidate it is of (None: plain decoding), and with how many drafts at most."""

    arm: Arm
    label: str | None
    limit: int


def profile(
    arms: Sequence[Profiled], work: Work, together: Sequence[int], bar: Bar
) -> tuple[dict[str | None, Measured], list[StepTime]]:
    """Run every prompt by itself through all arms in turn, then the prompts `together` as one.

    Return what was measured by label, and the times of all steps. The second part tells what more requests add to a
    step; with fewer than two prompts it is left out.
    """
    times: dict[str | None, StepTimes] = {each.label: StepTimes() for each in arms}
    runs: dict[str | None, dict[int, list[PromptRun]]] = {each.label: {} for each in arms}
    for index, ids in enumerate(work.ids):
        turn = index % len(arms)
        for each in (*arms[turn:], *arms[:turn]):
            bar.show(each.arm.label)
            log, traces = run_traced(each.arm.llm, [ids], [work.of(index)], each.limit)
            times[each.label].times += log.times
            runs[each.label].setdefault(each.limit, []).extend(traces)
        bar.advance()
    if len(together) > 1:
        for each in arms:
            bar.show(f"{each.arm.label}, {len(together)} together")
            chosen, params = [work.ids[index] for index in together], [work.of(index) for index in together]
            times[each.label].times += run_traced(each.arm.llm, chosen, params, each.limit)[0].times
    every = [time for each in times.values() for time in each.times]
    return {label: Measured(runs[label], times[label].cost()) for label in runs}, every


def measure_forwards(arm: Arm, batches: Sequence[int], most_rows: int, context: int) -> ForwardCost:
    """Return the cost of forwards of so many requests with 1 .. `most_rows` rows each, numbers of rows in turn."""
    rows = sorted({*(count for count in ROWS if count < most_rows), most_rows})
    points = {}
    for batch in batches:
        found: dict[int, list[float]] = {count: [] for count in rows}
        with ForwardTimer(arm.llm, batch, context, most_rows) as timer:
            for turn in range(TURNS + 1):
                for count in rows:
                    seconds = timer.seconds([count] * batch)
                    if turn:
                        found[count].append(seconds)
        points[batch] = [(batch * count, statistics.median(each)) for count, each in found.items()]
    return ForwardCost(points)
