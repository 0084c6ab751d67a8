"""Runs prompts of an engine and keeps every step: what was drafted and accepted, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from specdec_core.errors import RequestError
from specdec_engine.decoding.step import Step
from specdec_engine.llm import LLM
from specdec_engine.tune.costs import StepTime
from specdec_engine.tune.predict import PromptRun
from specdec_engine.tune.shorter import Seen


@dataclass
class StepLog:
    """Adds up the steps of one run, in which each request may get at most `limit` drafts a step (0: plain decoding)."""

    limit: int
    prompt_seconds: float = 0.0
    steps: dict[str, list[Seen]] = field(default_factory=dict)
    times: list[StepTime] = field(default_factory=list)
    _step: Step | None = None

    def see(self, step: Step) -> None:
        """Keep a step until `add` comes with its seconds; this is what a `Stepper` is given to watch it."""
        self._step = step

    def add(self, wall: float) -> None:
        """Add the step that was seen last, of so many seconds from call to return."""
        step, self._step = self._step, None
        if step is None:
            self.prompt_seconds += wall
            return
        for item in step.drawn.items:
            if not item.prompt:
                seen = Seen(item.num_draft, len(item.accepted), item.kept)
                self.steps.setdefault(item.request.id, []).append(seen)
        if any(item.prompt for item in step.items):
            self.prompt_seconds += wall
            return
        draft, forward = step.seconds["propose"] if self.limit else 0.0, step.seconds["forward"]
        rest = max(0.0, wall - draft - forward)
        self.times.append(StepTime(len(step.items), step.out.rows, self.limit, draft, forward, rest))


def run_traced(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[Any], limit: int
) -> tuple[StepLog, list[PromptRun]]:
    """Run prompts together; return the log and a trace of each, whose seconds are right for one prompt alone.

    Raises RequestError where a request ends in an error.
    """
    log, stepper = StepLog(limit), llm._engine.stepper
    stepper.watch = log.see
    try:
        with llm.start([{"prompt_token_ids": list(ids)} for ids in prompts], list(params)) as run:
            now = perf_counter()
            while not run.finished:
                run.step()
                before, now = now, perf_counter()
                log.add(now - before)
            outputs = run.outputs()
    finally:
        stepper.watch = None
    for output in outputs:
        if (error := output.outputs[0].error) is not None:
            raise RequestError(error)
    steps = [log.steps.get(f"{output.request_id}-0", []) for output in outputs]
    return log, [PromptRun(log.prompt_seconds, each) for each in steps]
