"""When a request ends: the earliest rule inside an accepted block wins, and nothing after it is kept."""

from __future__ import annotations

from specdec.draft import IntArray
from specdec_engine.outputs import StopKind
from specdec_engine.request import Request


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

    def cut(self, request: Request, emitted: IntArray) -> tuple[int, StopKind | None, int | None]:
        """Return how many of the emitted ids stay, why the request ends (None: it goes on), and the stop id if any.

        The id that fires a rule is kept. A stop id and the length limit at the same place count as "stop", as in vLLM.
        """
        params = request.sampling_params
        stop_ids = params.stop_token_ids or ()
        budget = self.budget(request)
        for count, token in enumerate(emitted[:budget].tolist(), start=1):
            if token in self.eos_token_ids and not params.ignore_eos:
                return count, "stop", None
            if token in stop_ids:
                return count, "stop", token
        if len(emitted) >= budget:
            return budget, "length", None
        return len(emitted), None, None
