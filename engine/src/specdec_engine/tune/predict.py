"""Predicted times of prompts that run together, from their steps and what a step costs; plain numbers, no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specdec_engine.bench.intervals import Ratio, speed_ratio
from specdec_engine.tune.costs import ForwardCost, MethodCost
from specdec_engine.tune.shorter import Seen, at_limit


@dataclass(frozen=True)
class PromptRun:
    """What an arm did with one prompt that ran alone.

    prompt_seconds  of the steps that ran the prompt, the last of which gave the first id
    steps           the decode steps after it
    """

    prompt_seconds: float
    steps: Sequence[Seen]

    @property
    def tokens(self) -> int:
        """Ids emitted."""
        return 1 + sum(step.kept for step in self.steps)


def decode_seconds(requests: Sequence[Sequence[Seen]], limit: int, forward: ForwardCost, cost: MethodCost) -> float:
    """Return the seconds of decoding requests side by side: each step runs the next one of all that have steps left."""
    total = 0.0
    for at in range(max((len(steps) for steps in requests), default=0)):
        running = [steps[at] for steps in requests if at < len(steps)]
        rows = sum(1 + step.drafted for step in running)
        total += forward.seconds(len(running), rows) + cost.seconds(len(running), rows, limit)
    return total


@dataclass(frozen=True)
class Measured:
    """An arm as it was measured.

    runs  most drafts of a step (0: plain decoding) -> a trace of each prompt, in order
    cost  of its steps besides the forward
    """

    runs: Mapping[int, Sequence[PromptRun]]
    cost: MethodCost

    def seconds(self, prompts: Sequence[int], limit: int, forward: ForwardCost) -> float:
        """Return the predicted seconds of prompts that are submitted together, with at most `limit` drafts."""
        chosen = [self._traces(limit)[prompt] for prompt in prompts]
        steps = [at_limit(trace.steps, limit, self._source(limit)) for trace in chosen]
        return sum(trace.prompt_seconds for trace in chosen) + decode_seconds(steps, limit, forward, self.cost)

    def tokens(self, prompts: Sequence[int], limit: int) -> int:
        """Return the ids of the prompts."""
        return sum(self._traces(limit)[prompt].tokens for prompt in prompts)

    def _source(self, limit: int) -> int:
        """Return the limit of the run that tells about this one: the least that is not below it, else the largest."""
        return min((known for known in self.runs if known >= limit), default=max(self.runs))

    def _traces(self, limit: int) -> Sequence[PromptRun]:
        return self.runs[self._source(limit)]


def predict(
    method: Measured, limit: int, plain: Measured, units: Sequence[Sequence[int]], forward: ForwardCost
) -> Ratio:
    """Return the predicted speed-up of a method with `limit` drafts over plain decoding, over units of prompts.

    The interval is that of `speed_ratio` over the units. It holds for other prompts of the same kind; what the model of
    costs leaves out is not in it.
    """
    columns = [
        (
            method.tokens(unit, limit),
            method.seconds(unit, limit, forward),
            plain.tokens(unit, 0),
            plain.seconds(unit, 0, forward),
        )
        for unit in units
    ]
    return speed_ratio(*np.array(columns, np.float64).T)
