"""What a caller gets back, with vLLM's names: a `RequestOutput` per prompt, a `CompletionOutput` per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specdec_core.metrics import SpecMetrics

StopKind = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Logprob:
    """One id at one place: its log-probability, its rank (1 = the best, lower ids first among equals), its text.

    `decoded_token` is the text of the id by itself; None without a tokenizer or with `detokenize=False`.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Logprobs = dict[int, Logprob]  # of one place: the id that stands there first, then the best ones


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `finish_reason` is None while it runs.

    stop_reason         the stop id or the stop text that ended it, if one did
    cumulative_logprob  sum of the log-probabilities of the ids; None if `logprobs` was not asked for
    logprobs            one entry an id; None if not asked for
    error               what went wrong, if `finish_reason` is "error"; the ids before it are right
    plain_reason        why the sample was decoded without speculation in an engine that speculates; None if it was not
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: StopKind | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[Logprobs] | None = None
    error: str | None = None
    plain_reason: str | None = None

    def finished(self) -> bool:
        """Return whether the sample has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its samples; from `stream`, a snapshot of how far it has come.

    `metrics` sums the speculation figures of all samples; the first id of a sample comes with the prompt's pass and is
    no step. `prompt_logprobs` has one entry an id of the prompt, None for the first; it is None if not asked for.
    `num_cached_tokens` is how many ids of the prompt did not run for the first sample: earlier requests had run them.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: SpecMetrics
    prompt_logprobs: list[Logprobs | None] | None = None
    num_cached_tokens: int = 0
