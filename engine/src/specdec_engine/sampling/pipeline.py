"""What a request's parameters mean for the logits of its rows, worked out once when it is submitted.

The order is vLLM's: logit_bias, allowed_token_ids and min_tokens, penalties, bad_words, processors; temperature and
truncation follow in the sampler. What only forbids may be done in any order before the processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from specdec_core.draft import IntArray
from specdec_core.errors import RequestError
from specdec_engine.requests.request import Request
from specdec_engine.sampling.penalties import Penalties
from specdec_engine.sampling.processors import Caller, Processors, callers_of
from specdec_engine.sampling.stages import AllowedIds, BadWords, LogitBias, MinTokens, Stage
from specdec_engine.sampling_params import SamplingParams

_FORBIDDING: Final = ("allowed_token_ids", "min_tokens", "bad_words", "logits_processors", "structured_outputs")


@dataclass(slots=True)
class Pipeline:
    """What is done to the rows of one sample.

    stages      in order
    processors  asked after them, None if there are none
    forbids     names of the parameters that together may leave no id at all
    """

    stages: Sequence[Stage]
    processors: Processors | None
    forbids: Sequence[str]

    def legal(self, request: Request, ids: IntArray) -> int:
        """Return how many of `ids`, which would follow the request's own, it can emit, counted from the first."""
        return min((stage.legal(request, ids) for stage in self.stages), default=len(ids))

    def commit(self, ids: Sequence[int]) -> None:
        """Take in ids that the request has emitted."""
        for stage in self.stages:
            stage.commit(ids)
        if self.processors is not None:
            self.processors.commit(ids)


@dataclass(slots=True)
class Compiled:
    """What parameters mean, for any number of samples.

    plain_reason  why requests with them are decoded without speculation, None if they are not
    """

    params: SamplingParams
    stages: list[Stage] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    plain_reason: str | None = None

    def start(self, prompt: IntArray) -> Pipeline | None:
        """Return the pipeline of one sample, None if there is nothing to do."""
        stages = list(self.stages)
        if Penalties.wanted(self.params):
            stages.append(Penalties(self.params, prompt))
        if not stages and not self.callers:
            return None
        processors = Processors([caller.fork() for caller in self.callers]) if self.callers else None
        return Pipeline(stages, processors, [name for name in _FORBIDDING if getattr(self.params, name)])


class PipelineCompiler:
    """Works parameters out for the vocabulary and the tokenizer of one engine."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int], tokenizer: Any, device: torch.device) -> None:
        """Take the width of the logits, the ids that end every text, the tokenizer or None, and the logits' device."""
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._tokenizer = tokenizer
        self._device = device

    def compile(self, params: SamplingParams) -> Compiled:
        """Return what parameters mean. Raises RequestError with the name of what cannot be honoured."""
        compiled = Compiled(params)
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            self._check_ids(name, getattr(params, name) or ())
        ends = {token for token in self._ends(params) if token < self._vocab_size}
        if params.logit_bias:
            compiled.stages.append(LogitBias(params.logit_bias))
        if params.allowed_token_ids:
            compiled.stages.append(AllowedIds(params.allowed_token_ids, self._vocab_size, self._device))
        if params.min_tokens and ends:
            compiled.stages.append(MinTokens(params.min_tokens, ends))
        singles: set[int] = set()
        if params.bad_words:
            words = BadWords([word for bad in params.bad_words for word in self._spellings(bad)])
            singles = set(words.singles.tolist())
            compiled.stages.append(words)
        _check_some_left(params, singles, ends)
        if params.logits_processors:
            compiled.callers, compiled.plain_reason = callers_of(params.logits_processors)
        return compiled

    def _ends(self, params: SamplingParams) -> set[int]:
        return {*(() if params.ignore_eos else self._eos), *(params.stop_token_ids or ())}

    def _check_ids(self, name: str, ids: Any) -> None:
        beyond = [token for token in ids if not 0 <= token < self._vocab_size]
        if beyond:
            message = f"sampling parameter {name} has the id {beyond[0]}, outside the model's vocabulary "
            raise RequestError(message + f"0..{self._vocab_size - 1}")

    def _spellings(self, word: str | Sequence[int]) -> list[tuple[int, ...]]:
        """Return the ids of a bad word, as a text with and without a space before it."""
        if not isinstance(word, str):
            self._check_ids("bad_words", word)
            return [tuple(word)]
        if self._tokenizer is None:
            message = f"sampling parameter bad_words has the text {word!r}, and this model has no tokenizer; pass ids"
            raise RequestError(message)
        texts = (word.lstrip(), " " + word.lstrip())
        spellings = {tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts if text.strip()}
        if not all(spellings) or not spellings:
            message = f"sampling parameter bad_words has {word!r}, of which the tokenizer makes no id"
            raise RequestError(message)
        for spelling in spellings:
            self._check_ids("bad_words", spelling)
        return sorted(spellings)


def _check_some_left(params: SamplingParams, singles: set[int], ends: set[int]) -> None:
    """Raise RequestError where parameters forbid every id from the beginning."""
    if params.allowed_token_ids is None:
        return
    left = set(params.allowed_token_ids) - singles
    if not left:
        message = "sampling parameters allowed_token_ids and bad_words together forbid every id"
        raise RequestError(message)
    if params.min_tokens and left <= ends:
        message = (
            f"sampling parameter min_tokens={params.min_tokens} cannot be met: all of allowed_token_ids that bad_words "
            "leaves would end the text"
        )
        raise RequestError(message)
