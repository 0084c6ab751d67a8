"""How many drafts each request may get in a step: the smallest of everything that limits it, 0 for speculation off."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from specdec_core.draft import Draft, IntArray, RequestView, likeliest
from specdec_core.host.requests import HostRequest, Slot
from specdec_core.protocols import Controller, ForgetsRequests, Trims

if TYPE_CHECKING:
    from specdec_core.config.speculative import SpeculativeConfig
    from specdec_core.host.cost_cut import CostCut
    from specdec_core.stats import StepStats
    from specdec_core.traits import MethodTraits


class Limits(Protocol):
    """What a budget reads of a resolved configuration (`specdec_core.config.speculative.ResolvedConfig`)."""

    @property
    def method(self) -> str:
        """Name of the method, for messages."""

    @property
    def config(self) -> SpeculativeConfig:
        """The common keys: the schedule by batch size and the tokens of a step."""

    @property
    def traits(self) -> MethodTraits:
        """What the method declares."""

    @property
    def num_speculative_tokens(self) -> int:
        """The most drafts of a request."""

    @property
    def max_model_len(self) -> int:
        """Drafts stand below this position."""


class DraftBudget:
    """Limits by request: k, batch size, traits, context, the text's end, the request's own, controller, step tokens."""

    def __init__(
        self,
        resolved: Limits,
        controller: Controller | None = None,
        logger: logging.Logger | None = None,
        cost_cut: CostCut | None = None,
    ) -> None:
        """Take what does not change during a session; `cost_cut` cuts drafts where no controller does."""
        config, traits = resolved.config, resolved.traits
        k = resolved.num_speculative_tokens
        self._k: Final = k if traits.max_tokens is None else min(k, traits.max_tokens)
        self._end: Final = min(
            (end for end in (resolved.max_model_len, traits.max_position) if end is not None), default=None
        )
        self._method: Final = resolved.method
        self._schedule: Final = config.num_speculative_tokens_per_batch_size or ()
        self._disable_above: Final = config.disable_by_batch_size
        self._step_tokens: Final = config.max_step_tokens
        self._controller: Final = controller
        self._trims: Final = _trims(controller)
        self._forgets: Final = _forgets(controller)
        self._cost_cut: Final = cost_cut
        self._decoding = 0  # requests that could get drafts in this step
        self._trees: Final = traits.shape == "tree"
        self._logger: Final = logger or logging.getLogger(__name__)
        self._warned = False

    def scheduled(self, batch_size: int) -> int:
        """Return k for that many running requests; 0: speculation is off. Gaps and the tail keep the last k."""
        if self._disable_above is not None and batch_size > self._disable_above:
            return 0
        k = self._k
        for start, _, size_k in self._schedule:
            if start <= batch_size:
                k = min(size_k, self._k)
        return k

    def limits(self, slots: Sequence[Slot], batch_size: int) -> list[int]:
        """Return the most drafts of each slot, whose newest ids are known; of a tree the number of nodes."""
        k = self.scheduled(batch_size)
        limits = []
        self._decoding = len(slots)
        for slot in slots:
            own = slot.request.max_draft
            asked, depth = k if own is None else min(k, own), self.depth(slot)
            limits.append((asked if depth > 0 else 0) if self._trees else max(0, min(asked, depth)))
        if self._controller is not None and slots:
            wished = self._controller.limit([slot.request.view for slot in slots], tuple(limits))
            limits = [max(0, min(limit, wish)) for limit, wish in zip(limits, wished, strict=True)]
        return limits if self._step_tokens is None else share(limits, self._step_tokens)

    def trim(self, requests: Sequence[RequestView], draft: Draft) -> Draft:
        """Return a host-form draft without what the controller cuts; it is asked about rows of point masses alone."""
        if self._cost_cut is not None:
            return self._cost_cut.trim(requests, draft, self._decoding)
        if self._trims is None or not len(draft.tokens):
            return draft
        draft = draft.to_host()
        if draft.confidence is None:
            estimates = [np.empty(0, np.float32) for _ in requests]
        else:
            ends = np.cumsum(np.asarray(draft.lengths, np.int64))[:-1].tolist()
            estimates = [np.asarray(part, np.float32).copy() for part in np.split(draft.confidence, ends)]
            parents: Sequence[IntArray | None] = [None] * len(estimates)
            if draft.parents is not None:
                parents = np.split(draft.parents, ends)
            estimates = [_along_paths(part, own) for part, own in zip(estimates, parents, strict=True)]
            if draft.q_row is not None:
                drawn = [bool(np.any(part >= 0)) for part in np.split(draft.q_row, ends)]
                estimates = [part[:0] if is_drawn else part for part, is_drawn in zip(estimates, drawn, strict=True)]
        kept = self._trims.trim(requests, estimates)
        masks = [
            likeliest(part, max(0, wish)) if len(part) else np.ones(length, np.bool_)
            for length, part, wish in zip(draft.lengths or (), estimates, kept, strict=True)
        ]
        return draft.keep(np.concatenate(masks))

    def observe(self, stats: StepStats) -> None:
        """See what a step took, for cuts by cost; the host tells a controller itself (`specdec_core.host.reports`)."""
        if self._cost_cut is not None:
            self._cost_cut.observe(stats)

    def finished(self, request_id: str) -> None:
        """Tell the controller that a request ended, if it wants to know."""
        if self._cost_cut is not None:
            self._cost_cut.finished(request_id)
        if self._forgets is not None:
            self._forgets.finished([request_id])

    def depth(self, slot: Slot) -> int:
        """Return how many drafts may stand in sequence: all of a chain, the longest path of a tree."""
        if self._end is None:
            return slot.room
        left = self._end - len(slot.request)
        if left <= 0:
            self._warn(slot.request)
        return min(slot.room, left)

    def _warn(self, request: HostRequest) -> None:
        if self._warned:
            return
        self._warned = True
        self._logger.warning(
            "request %s has reached position %d, where drafts of method %r end (the drafter's context or the "
            "configured max_model_len); it is decoded plainly from there (logged once)",
            request.id,
            self._end,
            self._method,
        )


def _trims(controller: object) -> Trims | None:
    """Return a controller that cuts drafts; None for one that does not, or whose wrapper wants none."""
    return controller if isinstance(controller, Trims) and getattr(controller, "trims", True) else None


def _forgets(controller: object) -> ForgetsRequests | None:
    """Return a controller that wants to know which requests ended."""
    return controller if isinstance(controller, ForgetsRequests) else None


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


def _along_paths(estimates: npt.NDArray[np.float32], parents: IntArray | None) -> npt.NDArray[np.float32]:
    """Return the estimates of one row's nodes, none above that of its parent."""
    if parents is None:
        lowest: npt.NDArray[np.float32] = np.minimum.accumulate(estimates) if len(estimates) else estimates
        return lowest
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            estimates[node] = min(estimates[node], estimates[parent])
    return estimates
