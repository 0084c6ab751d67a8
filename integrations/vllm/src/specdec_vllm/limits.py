"""How many drafts each row may get: k, the request's own limit, the batch size, the context and the answer's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specdec_core.config.speculative import ResolvedConfig
from specdec_vllm.views import SeenRequest


class Limits:
    """The smallest of everything that limits a row; 0 where speculation is off."""

    def __init__(self, resolved: ResolvedConfig, max_model_len: int) -> None:
        """Take what does not change; `max_model_len` is the target's."""
        config, traits = resolved.config, resolved.traits
        self._k: Final = min(resolved.num_speculative_tokens, traits.max_tokens or resolved.num_speculative_tokens)
        self._schedule: Final = config.num_speculative_tokens_per_batch_size or ()
        self._disable_above: Final = config.disable_by_batch_size
        ends = (resolved.max_model_len, traits.max_position or max_model_len)
        # A draft ends below the drafter's end; and one more id follows it, for which the target needs a place.
        self._end: Final = min(*ends, max_model_len - 1)

    def scheduled(self, batch_size: int) -> int:
        """Return k for that many rows, those inside prompts included. Gaps and the tail of a schedule keep the last."""
        if self._disable_above is not None and batch_size > self._disable_above:
            return 0
        k = self._k
        for start, _, size_k in self._schedule:
            if start <= batch_size:
                k = min(size_k, self._k)
        return k

    def rows(self, requests: Sequence[SeenRequest], batch_size: int) -> list[int]:
        """Return the most drafts of each request."""
        k = self.scheduled(batch_size)
        return [max(0, min(k, self._room(request))) for request in requests]

    def _room(self, request: SeenRequest) -> int:
        room = self._end - len(request)
        if request.max_draft is not None:
            room = min(room, request.max_draft)
        most = getattr(request.sampling_params, "max_tokens", None)
        if most is not None:  # drafts behind the last id of the answer would be verified for nothing
            room = min(room, most - (len(request) - request.prompt_len) - 1)
        return room
