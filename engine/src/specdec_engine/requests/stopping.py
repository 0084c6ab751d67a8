"""When a request ends: the earliest rule inside an accepted block wins, and nothing after it is kept."""

from __future__ import annotations

from typing import NamedTuple

from specdec_core.draft import IntArray
from specdec_engine.outputs import StopKind
from specdec_engine.requests.request import Request


class Cut(NamedTuple):
    """How many of the emitted ids stay, why the request ends (None: it goes on), and the stop id or text if any."""

    kept: int
    reason: StopKind | None
    stop_reason: int | str | None


class StopRules:
    """The rules that hold for every request of one engine."""

    def __init__(self, eos_token_ids: frozenset[int], max_length: int) -> None:
        """Take the model's end-of-sequence ids and the most ids (prompt + output) that a request may have."""
        self.eos_token_ids = eos_token_ids
        self.max_length = max_length

    def budget(self, request: Request) -> int:
        """Return how many ids the request may still emit."""
        left = self.max_length - len(request)
        if request.sampling_params.max_tokens is not None:
            left = min(left, request.sampling_params.max_tokens - request.output_len)
        return left

    def cut(self, request: Request, emitted: IntArray) -> Cut:
        """Find the first id at which a rule fires; the id is kept. The caller appends what stays.

        At one id the end-of-sequence ids come first, then stop ids, then stop texts, then the length, as in vLLM. No
        rule but the length fires before `min_tokens` ids, and no stop text that ends in the text of the first
        `min_tokens` ids. Of a request with stop texts, the ids up to the cut go into its text here.
        """
        params, text = request.sampling_params, request.text
        stop_ids, stops = params.stop_token_ids or (), params.stop_texts
        budget = self.budget(request)
        for count, token in enumerate(emitted[:budget].tolist(), start=1):
            length = request.output_len + count
            ended = token in self.eos_token_ids and not params.ignore_eos
            if length >= params.min_tokens and (ended or token in stop_ids):
                if not params.include_stop_str_in_output:
                    text.limit = length - 1
                return Cut(count, "stop", None if ended else token)
            if stops:
                start = len(text)
                text.push(token)
                if length > params.min_tokens:
                    stop = text.cut(stops, start, keep=params.include_stop_str_in_output)
                    if stop is not None:
                        return Cut(count, "stop", stop)
        if len(emitted) >= budget:
            return Cut(budget, "length", None)
        return Cut(len(emitted), None, None)
