"""Measuring: units in order, every arm on a unit before the next comes, the order of arms turned by one each time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Final

from specdec_core.errors import RequestError
from specdec_core.metrics import SpecMetrics
from specdec_engine.bench.arms import Arm
from specdec_engine.bench.prompts import Unit
from specdec_engine.bench.recorder import Recorder
from specdec_engine.bench.rows import Difference, Row
from specdec_engine.compare import first_difference
from specdec_engine.outputs import RequestOutput
from specdec_engine.sampling_params import SamplingParams

WARM_UP_IDS: Final = 64
WARM_UP_TOKENS: Final = 24


@dataclass(frozen=True)
class Work:
    """What every arm runs: the ids of all prompts, and the parameters of each."""

    ids: Sequence[Sequence[int]]
    params: SamplingParams

    def of(self, index: int) -> SamplingParams:
        """Return the parameters of one prompt, with a seed of its own."""
        return replace(self.params, seed=(self.params.seed or 0) + index)


@dataclass
class _Timed:
    """An arm's answers to a unit, before they are compared."""

    outputs: list[RequestOutput]
    recorder: Recorder
    seconds: float
    part_seconds: list[float]


def measure(
    arms: Sequence[Arm], units: Sequence[Unit], work: Work, started: Callable[[str], None] = lambda label: None
) -> Iterator[list[Row]]:
    """Yield the rows of each unit, one an arm. The first arm is plain decoding, with which the others are compared.

    `started` is told the label of an arm before it runs. Raises RequestError where a request ends in an error.
    """
    for unit in units:
        turn = unit.number % len(arms)
        timed: dict[str, _Timed] = {}
        for arm in (*arms[turn:], *arms[:turn]):
            started(arm.label)
            timed[arm.label] = _run(arm, unit, work)
        yield [_row(arm, arms[0], unit, work, timed) for arm in arms]


def warm_up(arms: Sequence[Arm], work: Work, concurrency: int) -> None:
    """Let every arm compile and allocate what it needs, on a prompt that is none of the benchmark's.

    The prompt is the first one from its end to its beginning, so that a method that remembers answers knows none.
    """
    ids = list(reversed(work.ids[0]))
    params = replace(work.params, max_tokens=min(WARM_UP_TOKENS, work.params.max_tokens or WARM_UP_TOKENS), seed=0)
    for arm in arms:
        for prompt, count in ((ids[:WARM_UP_IDS], 1), (ids, concurrency)):
            arm.llm.generate([{"prompt_token_ids": prompt}] * count, params, use_tqdm=False)


def _run(arm: Arm, unit: Unit, work: Work) -> _Timed:
    """Time one arm on one unit."""
    stepper = arm.llm._engine.stepper
    runner = None if stepper.speculation is None else stepper.speculation.runner
    recorder = Recorder(runner is not None)
    known = [] if runner is None else runner.part_seconds()
    prompts = [{"prompt_token_ids": work.ids[index]} for index in unit.prompts]
    params = [work.of(index) for index in unit.prompts]
    stepper.watch = recorder.see
    try:
        began = perf_counter()
        with arm.llm.start(prompts, params) as run:
            now = perf_counter()
            while not run.finished:
                run.step()
                before, now = now, perf_counter()
                recorder.add(now - before)
            spent = [] if runner is None else runner.part_seconds()
            by_part = [after - before for after, before in zip(spent, known, strict=False)]
            return _Timed(run.outputs(), recorder, now - began, by_part)
    finally:
        stepper.watch = None


def _row(arm: Arm, plain: Arm, unit: Unit, work: Work, timed: Mapping[str, _Timed]) -> Row:
    mine, theirs = timed[arm.label], timed[plain.label]
    metrics = SpecMetrics()
    metrics.merge(output.metrics for output in mine.outputs)
    differences = []
    for index, output, reference in zip(unit.prompts, mine.outputs, theirs.outputs, strict=True):
        if (error := output.outputs[0].error) is not None:
            message = f"{arm.label}, prompt {index}: {error}"
            raise RequestError(message)
        differences.append(None if arm is plain else _difference(arm, plain, reference, output, work.of(index)))
    recorder = mine.recorder
    return Row(
        arm=arm.label,
        concurrency=unit.concurrency,
        unit=unit.number,
        task=unit.task,
        prompts=list(unit.prompts),
        ids=[list(output.outputs[0].token_ids) for output in mine.outputs],
        producers=recorder.of([f"{output.request_id}-0" for output in mine.outputs]),
        differences=differences,
        seconds=mine.seconds,
        prompt_seconds=recorder.prompt_seconds,
        phases=recorder.seconds,
        forwards=[(rows, int(count), seconds) for rows, (count, seconds) in sorted(recorder.forwards.items())],
        accepted_lengths=sorted(recorder.accepted_lengths.items()),
        undrafted=recorder.undrafted,
        part_seconds=mine.part_seconds,
        counters=asdict(metrics),
    )


def _difference(
    arm: Arm, plain: Arm, reference: RequestOutput, output: RequestOutput, params: SamplingParams
) -> Difference | None:
    """Return where an output leaves plain decoding's, and what that is."""
    a, b = reference.outputs[0].token_ids, output.outputs[0].token_ids
    index = first_difference(a, b)
    if index is None:
        return None
    if arm.promises_tokens(params):
        found = plain.llm.compare(reference, output, params)
        assert found is not None
        return Difference(
            index=found.index,
            plain=found.plain,
            other=found.other,
            verdict=found.verdict,
            margin=_finite(found.margin),
            noise=_finite(found.noise),
        )
    plain_id, other_id = (ids[index] if index < len(ids) else None for ids in (a, b))
    return Difference(index=index, plain=plain_id, other=other_id, verdict="not promised")


def _finite(value: float) -> float | None:
    """Return the value as JSON can hold it."""
    return value if math.isfinite(value) else None
