"""The engine's side of the proposer contract: when it is called, with which rows, and what happens if it misbehaves."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from specdec_core.draft import BatchView, Draft, FinishReason, Rows
from specdec_core.errors import ContractError
from specdec_core.host.handed import OnlyErrors
from specdec_core.noise import Noise, request_key
from specdec_core.protocols import MeasuresMemory, Proposer
from specdec_core.traits import MethodTraits
from specdec_engine.limits import DraftLimits
from specdec_engine.request import PendingRows, Request

logger = logging.getLogger("specdec_engine")


class _Closed:
    """What a closed proposer leaves behind: it drafts nothing and holds nothing."""

    def start(self, request: object) -> None:
        """Take no notice."""

    def propose(self, batch: BatchView) -> Draft:
        """Return empty rows."""
        return Draft.empty(len(batch))

    def finish(self, request: object, reason: FinishReason) -> None:
        """Take no notice."""

    def close(self) -> None:
        """Have nothing to release."""

    def memory_bytes(self) -> int:
        """Return 0."""
        return 0


class Drafting:
    """Calls one proposer. A call that goes wrong costs its rows the drafts of one step, a warning once, and a count."""

    def __init__(
        self,
        proposer: Proposer,
        traits: MethodTraits,
        limits: DraftLimits,
        vocab_size: int,
        *,
        method: str,
        strict: bool,
    ) -> None:
        """With `strict`, errors of the proposer are raised instead of contained."""
        self._proposer = proposer
        self._traits = traits
        self._limits = limits
        self._vocab_size = vocab_size
        self._method = method
        self._strict = strict
        self._warned = False
        self.failed: str | None = None  # the last error of this step
        self.failures = 0
        self._asked: set[int] = set()  # by `id`, the requests of this step that were to get drafts

    def asked(self, request: Request) -> bool:
        """Say whether the proposer was to draft for a request in this step."""
        return id(request) in self._asked

    @property
    def wants_rows(self) -> bool:
        """Whether committed rows have to be kept for the proposer."""
        return self._traits.rows != "none"

    def depths(self, ready: Sequence[Request]) -> list[int] | None:
        """Return how deep a node may stand in each row; None for chains, whose lengths `draft` has limited already."""
        if self._traits.shape == "chain":
            return None
        return [self._limits.depth(request) for request in ready]

    def draft(self, running: Sequence[Request], ready: Sequence[Request]) -> Draft:
        """Return one draft row per request in `ready`; rows are empty where nothing was drafted."""
        self.failed = None
        self._asked = set()
        if self._limits.scheduled(len(running)) == 0:
            for request in running:
                self._switch_off(request)
            return Draft.empty(len(ready))
        for request in running:
            if request.retired:
                request.pending.clear()  # nobody will take these rows, and each holds the states of its whole step
        active = [request for request in ready if not request.retired]
        k = dict(zip(map(id, active), self._limits.rows(active, len(running)), strict=True))
        self._asked = {request for request, most in k.items() if most}
        batch = [r for r in running if not r.retired and self._takes_part(r, k.get(id(r), 0)) and self._started(r)]
        if not batch:
            return Draft.empty(len(ready))
        max_draft = np.array([k.get(id(r), 0) for r in batch], np.int32)
        draft = self._propose(batch, max_draft)
        if draft is None:
            return Draft.empty(len(ready))
        # Rows of `batch` that are not ready are empty, and `batch` keeps the order of `ready`: only lengths differ.
        lengths = dict(zip(map(id, batch), draft.lengths or (), strict=True))
        draft.lengths = [lengths.get(id(r), 0) for r in ready]
        return draft

    def _takes_part(self, request: Request, k: int) -> bool:
        if self._traits.rows == "none":
            return k > 0
        return bool(request.pending) or request.newest_known

    def _switch_off(self, request: Request) -> None:
        """Drop rows that will not be delivered; the proposer sees a gap, or does not see the request again."""
        request.pending.clear()
        if self._traits.when_off == "retire":
            request.retired = True
            self.finish(request, "aborted")

    def _started(self, request: Request) -> bool:
        if request.started:
            return True
        try:
            with self._guard("start"):
                self._proposer.start(request.view)
        except Exception as error:
            self._contain(error, "start")
            return False
        request.started, request.next_row = True, 0
        return True

    def _propose(self, batch: list[Request], max_draft: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Draft | None:
        view = BatchView(
            requests=[r.view for r in batch],
            run_len=np.array([r.run_len for r in batch], np.int32),
            newest_known=np.array([r.newest_known for r in batch], np.bool_),
            max_draft=max_draft,
            noise=self._noise(batch),
            rows=None if self._traits.rows == "none" else self._rows(batch),
        )
        try:
            with self._guard("propose"):
                draft: object = self._proposer.propose(view)
            if not isinstance(draft, Draft):
                message = f"propose returned {type(draft).__name__}, not a Draft"
                raise ContractError(message)
            with self._guard("propose"):
                draft = draft.to_host()
            draft.check(max_draft, self._vocab_size, self._traits)
        except Exception as error:
            self._contain(error, "propose")
            for request in batch:
                self.finish(request, "failed")
            return None
        return draft

    def _noise(self, batch: list[Request]) -> Noise:
        """Return the noise for drawing drafts: the target's own if the method shares it, else fresh in every step.

        A position is drafted again after a rejection before it. Where the acceptance of early drafts may depend on
        later ones (block verification), drawing those again from the same noise would bias the output. The keys are
        hashes of the request's, so that no drafter can compute the noise that decides about its drafts.
        """
        keys = [r.key for r in batch]
        if not self._traits.shares_noise:
            keys = [request_key(None, r.key, len(r)) for r in batch]
        return Noise(
            keys=np.array(keys, np.uint64),
            positions=np.array([len(r) for r in batch], np.int32),
            seq_index=np.array([r.seq_index for r in batch], np.int32),
        )

    def _rows(self, batch: list[Request]) -> Rows:
        """Collect the pending rows in the shifted layout and mark gaps."""
        owner: list[int] = []
        spans: list[tuple[int, int]] = []
        pending: list[PendingRows] = []
        gap = np.zeros(len(batch), np.bool_)
        for i, request in enumerate(batch):
            if request.pending:
                gap[i] = request.pending[0].start > request.next_row
                last = request.pending[-1]
                request.next_row = last.start + last.count
            for rows in self._wanted(request.pending):
                owner.extend([i] * rows.count)
                spans.append((i, rows.start))
                pending.append(rows)
            request.pending = []
        positions = [np.arange(rows.start, rows.start + rows.count, dtype=np.int32) for rows in pending]
        tokens = [batch[i].tokens[p + 1] for (i, _), p in zip(spans, positions, strict=True)]
        hidden = [rows.hidden for rows in pending if rows.hidden is not None]
        aux = [rows.aux for rows in pending if rows.aux is not None]
        return Rows(
            request=np.array(owner, np.int32),
            positions=np.concatenate(positions) if positions else np.empty(0, np.int32),
            tokens=np.concatenate(tokens) if tokens else np.empty(0, np.int32),
            hidden=torch.cat(hidden) if hidden else None,
            aux=torch.cat(aux) if aux else None,
            gap=gap,
        )

    def _wanted(self, pending: list[PendingRows]) -> list[PendingRows]:
        if self._traits.rows == "all" or not pending:
            return pending
        rows = pending[-1]
        hidden = None if rows.hidden is None else rows.hidden[-1:]
        aux = None if rows.aux is None else rows.aux[-1:]
        return [PendingRows(rows.start + rows.count - 1, 1, hidden, aux)]

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Tell the proposer that a request ended or lost its state, if it knows the request."""
        if not request.started:
            return
        request.started = False
        try:
            with self._guard("finish"):
                self._proposer.finish(request.view, reason)
        except Exception as error:
            self._contain(error, "finish")

    def memory_bytes(self) -> int | None:
        """Return the bytes that the proposer says it holds; None if it does not tell."""
        if not isinstance(self._proposer, MeasuresMemory):
            return None
        try:
            with self._guard("memory_bytes"):
                return int(self._proposer.memory_bytes())
        except Exception as error:
            self._contain(error, "memory_bytes")
            return None

    def close(self) -> None:
        """Close the proposer and let it go, with its weights."""
        proposer, self._proposer = self._proposer, _Closed()
        try:
            with self._guard("close"):
                proposer.close()
        except Exception as error:
            self._contain(error, "close")

    def _guard(self, call: str) -> OnlyErrors:
        return OnlyErrors(f"method {self._method!r}", call)

    def _contain(self, error: Exception, call: str) -> None:
        if self._strict:
            raise error
        self.failures += 1
        self.failed = f"{call}: {type(error).__name__}: {error}"
        if not self._warned:
            self._warned = True
            logger.warning(
                "method %r misbehaved in %s (%s: %s); the step goes on without its drafts, and so will later ones "
                "(this is said once; see the counter `failures`)",
                self._method,
                call,
                type(error).__name__,
                error,
            )
