"""What a caller gets back, with vLLM's names: a `RequestOutput` per prompt, a `CompletionOutput` per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from specdec.metrics import SpecMetrics

StopKind = Literal["stop", "length", "abort"]


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `finish_reason` is None while it runs; `stop_reason` is the stop id that ended it, if one did."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: StopKind | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: Any = None

    def finished(self) -> bool:
        """Return whether the sample has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its samples; from `stream`, a picture of how far it has come.

    `metrics` sums the speculation figures of all samples; the first id of a sample comes with the prompt's pass and is
    no step.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: SpecMetrics
    prompt_logprobs: Any = None
