"""The host's side of the proposer contract for methods that are shown the target's rows, or whose drafts are drawn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray
from specdec_core.protocols import Proposer
from specdec_core.traits import MethodTraits
from specdec_vllm.bridge_laws import probabilities
from specdec_vllm.bridge_rows import Span, Step, rows_of
from specdec_vllm.drafting import Drafting
from specdec_vllm.guard import Guard, logger
from specdec_vllm.limits import Limits
from specdec_vllm.views import SeenRequest

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Drafts:
    """Drafts of a step, one row for each row of the batch; and laws of drawn ones, with their requests."""

    rows: list[list[int]]
    laws: tuple[Tensor, list[str]] | None = None


@dataclass
class _Ledger:
    """Rows that the proposer keeps of each request, at most `room` together; None for methods that keep none."""

    room: int | None
    held: dict[SeenRequest, int] = field(default_factory=dict)

    def surplus(self, new: dict[SeenRequest, int]) -> list[SeenRequest]:
        """Return requests to give up, the youngest first, so that the new rows find room beside those held."""
        if self.room is None:
            return []
        wanted = {**self.held, **{r: self.held.get(r, 0) + n for r, n in new.items()}}
        total, given_up = sum(wanted.values()), []
        for request in sorted(wanted, key=lambda each: -each.arrival):
            if total <= self.room:
                break
            total -= wanted[request]
            given_up.append(request)
        return given_up


class StateDrafting(Drafting):
    """Calls one proposer with the rows of each step; rows that it does not get are a gap for it."""

    def __init__(
        self,
        proposer: Proposer,
        traits: MethodTraits,
        limits: Limits,
        vocab_size: int,
        guard: Guard,
        kv_tokens: int,
    ) -> None:
        """Take the parts; `kv_tokens` is how many rows the proposer's cache holds, if it has one."""
        super().__init__(proposer, traits, limits, vocab_size, guard)
        keeps = traits.rows != "last" and traits.weights != "none"
        self._ledger: Final = _Ledger(kv_tokens if keeps else None)
        self._next: Final[dict[SeenRequest, int]] = {}  # the position after the last row that the proposer was shown
        self._said_full = False

    def draft_step(self, step: Step, requests: Sequence[SeenRequest], spans: Sequence[Span]) -> Drafts:
        """Return the drafts of a step; `requests` and `spans` have one entry for each row of the batch."""
        nothing = Drafts([[] for _ in requests])
        if self._limits.scheduled(len(requests)) == 0:
            self._switch_off(requests)
            return nothing
        shown = {r: span for r, span in zip(requests, spans, strict=True) if not r.retired and self._takes_part(span)}
        self._make_room(shown)
        shown = {r: span for r, span in shown.items() if not r.retired and self._ready(r, span)}
        if not shown:
            return nothing
        ready = [request for request, span in shown.items() if span.sampled]
        limits = dict(zip(ready, self._limits.rows(ready, len(requests)), strict=True))
        if self._traits.rows == "none":
            shown = {request: span for request, span in shown.items() if limits[request]}
            if not shown:
                return nothing
        draft = self._call(step, shown, np.array([limits.get(request, 0) for request in shown], np.int32))
        if draft is None:
            return nothing
        ends: npt.NDArray[np.int64] = np.cumsum(np.asarray(draft.lengths, np.int64))
        by_request = dict(zip(shown, np.split(draft.tokens, ends[:-1]), strict=True))
        rows = [by_request[r].tolist() if r in by_request else [] for r in requests]
        return Drafts(rows, probabilities(draft, [request.id for request in shown], self._vocab_size))

    def finish(self, request: SeenRequest, reason: FinishReason) -> None:
        """Tell the proposer that a request ended or lost its state, if it knows the request."""
        self._next.pop(request, None)
        self._ledger.held.pop(request, None)
        super().finish(request, reason)

    def preempted(self, names: Collection[str]) -> None:
        """Tell the proposer which requests lost their place and will be run again."""
        for request in [request for request in self._next if request.id in names]:
            self.finish(request, "preempted")

    def rehearse(self, hidden_size: int, device: torch.device, dtype: torch.dtype) -> None:
        """Draft once for a request of one id, so that memory is taken and kernels are built before vLLM measures.

        Raises whatever the proposer raises: at the start that is an error, and no request waits.
        """
        import torch

        request = SeenRequest("specdec-rehearsal", 1, np.zeros(2, np.int32), 0)
        request.sampling_params = _Greedy()
        state = torch.zeros(1, hidden_size, device=device, dtype=dtype)
        aux = [state for _ in self._traits.aux_layers] or None
        step = Step([request.id], {request.id: 1}, {}, [0], [[0]], [2], request.tokens[None], state, aux)
        span = Span(0, 0, 1, sampled=True)
        limits = np.array(self._limits.rows([request], 1), np.int32)
        with torch.inference_mode():
            self._proposer.start(request.view)
            try:
                self._ask(self._view(step, {request: span}, limits), limits)
            finally:
                self._proposer.finish(request.view, "aborted")

    def _takes_part(self, span: Span) -> bool:
        return span.sampled or self._traits.rows != "none"

    def _ready(self, request: SeenRequest, span: Span) -> bool:
        """Start a request where needed; one that is run again, of which nobody told, begins anew."""
        if span.start < self._next.get(request, 0):
            self.finish(request, "preempted")
        if not self._started(request):
            return False
        self._next.setdefault(request, 0)
        return True

    def _make_room(self, shown: dict[SeenRequest, Span]) -> None:
        for request in self._ledger.surplus({r: self._new_rows(r, span) for r, span in shown.items()}):
            request.retired = True
            self.finish(request, "aborted")
            if not self._said_full:
                self._said_full = True
                logger.warning(
                    "the drafter's cache of %d positions is full; request %s, and whichever comes next, is decoded "
                    "without drafts (said once). drafter_kv_tokens sets the size",
                    self._ledger.room,
                    request.id,
                )

    def _call(self, step: Step, shown: dict[SeenRequest, Span], max_draft: IntArray) -> Draft | None:
        try:
            draft = self._ask(self._view(step, shown, max_draft), max_draft)
        except Exception as error:
            self._guard.failed("propose", error)
            for request in shown:
                self.finish(request, "failed")
            return None
        self._guard.succeeded()
        for request, span in shown.items():
            self._next[request] = span.end
            self._ledger.held[request] = self._ledger.held.get(request, 0) + self._new_rows(request, span)
        return draft

    def _new_rows(self, request: SeenRequest, span: Span) -> int:
        """Return how many rows a proposer adds to its cache; those that read ids alone catch up with all of them."""
        return span.count if self._traits.rows == "all" else span.end - self._ledger.held.get(request, 0)

    def _view(self, step: Step, shown: dict[SeenRequest, Span], max_draft: IntArray) -> BatchView:
        requests, kept = list(shown), list(shown.values())
        gap = np.array([span.start > self._next.get(r, 0) for r, span in shown.items()], np.bool_)
        return BatchView(
            requests=[request.view for request in requests],
            run_len=np.array([span.end for span in kept], np.int32),
            newest_known=np.array([span.sampled for span in kept], np.bool_),
            max_draft=max_draft,
            noise=self._noise(requests, np.array([len(request) for request in requests], np.int32)),
            rows=None if self._traits.rows == "none" else rows_of(step, self._traits, requests, kept, gap),
        )


class _Greedy:
    temperature: Final = 0.0
    max_tokens: Final = None
