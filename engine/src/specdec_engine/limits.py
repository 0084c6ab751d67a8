"""How many drafts each row may get, and whether speculation is off: the smallest of everything that limits it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.protocols import Controller
from specdec_engine.request import Request
from specdec_engine.stopping import StopRules

logger = logging.getLogger("specdec_engine")


class DraftLimits:
    """k by row: configured k, request, batch size, traits, context, budget left, tokens a step, controller."""

    def __init__(self, resolved: ResolvedConfig, rules: StopRules, controller: Controller | None) -> None:
        """Take what does not change during a session."""
        config, traits = resolved.config, resolved.traits
        self._k = resolved.num_speculative_tokens
        if traits.max_tokens is not None:
            self._k = min(self._k, traits.max_tokens)
        ends = [end for end in (resolved.max_model_len, traits.max_position) if end is not None]
        self._draft_end = min(ends) if ends else None
        self._method = resolved.method
        self._warned = False
        self._schedule = config.num_speculative_tokens_per_batch_size or ()
        self._disable_above = config.disable_by_batch_size
        self._step_tokens = config.max_step_tokens
        self._rules = rules
        self._controller = controller
        self._trees = traits.shape == "tree"

    def scheduled(self, batch_size: int) -> int:
        """Return k for that many running requests; 0 = speculation is off. Gaps and the tail keep the last k."""
        if self._disable_above is not None and batch_size > self._disable_above:
            return 0
        k = self._k
        for start, _, size_k in self._schedule:
            if start <= batch_size:
                k = min(size_k, self._k)
        return k

    def rows(self, requests: Sequence[Request], batch_size: int) -> list[int]:
        """Return k for requests whose newest id is known; of a tree it is the number of nodes, see `depth`."""
        k = self.scheduled(batch_size)
        rooms = [self.depth(request) for request in requests]
        asked = [k if request.max_draft is None else min(k, request.max_draft) for request in requests]
        if self._trees:
            limits = [k if room > 0 else 0 for k, room in zip(asked, rooms, strict=True)]
        else:
            limits = [max(0, min(k, room)) for k, room in zip(asked, rooms, strict=True)]
        if self._controller is not None and requests:
            wished = self._controller.limit([request.view for request in requests], limits)
            limits = [max(0, min(limit, wish)) for limit, wish in zip(limits, wished, strict=True)]
        return limits if self._step_tokens is None else share(limits, self._step_tokens)

    def depth(self, request: Request) -> int:
        """Return how many drafts may stand one behind the other: all of a chain, the longest path of a tree."""
        # n + k + 1 ids must fit: the last draft needs a place, and so does the id drawn after it.
        room = self._rules.budget(request) - 1
        if self._draft_end is None:
            return room
        left = self._draft_end - len(request)
        if left <= 0 and not self._warned:
            self._warned = True
            logger.warning(
                "request %s has reached position %d, where drafts of method %r end (the drafter's context or the "
                "configured max_model_len); it is decoded plainly from there (this is said once)",
                request.id,
                self._draft_end,
                self._method,
            )
        return min(room, left)


def share(limits: Sequence[int], total: int) -> list[int]:
    """Cut the largest limits until their sum is at most `total`; earlier rows keep what does not divide evenly."""
    cut = list(limits)
    if sum(cut) <= total:
        return cut
    level = max(c for c in range(max(cut) + 1) if sum(min(limit, c) for limit in cut) <= total)
    shared = [min(limit, level) for limit in cut]
    left = total - sum(shared)
    for i, limit in enumerate(cut):
        if left and limit > level:
            shared[i] += 1
            left -= 1
    return shared
