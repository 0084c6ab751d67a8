"""The host's side of the proposer contract, for methods that work on ids: when they are called, what if they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray
from specdec_core.errors import ContractError
from specdec_core.noise import Noise, request_key
from specdec_core.protocols import Proposer
from specdec_core.traits import MethodTraits
from specdec_vllm.guard import Guard
from specdec_vllm.limits import Limits
from specdec_vllm.views import SeenRequest

SEED: Final = 0  # vLLM draws by itself, so this noise decides nothing but a method's own draws


class Drafting:
    """Calls one proposer; a call that goes wrong costs its rows the drafts of one step."""

    def __init__(self, proposer: Proposer, traits: MethodTraits, limits: Limits, vocab_size: int, guard: Guard) -> None:
        """Take the parts; drafted ids are below `vocab_size`."""
        self._proposer: Final = proposer
        self._traits: Final = traits
        self._limits: Final = limits
        self._vocab_size: Final = vocab_size
        self._guard: Final = guard

    def draft(self, requests: Sequence[SeenRequest], batch_size: int) -> list[list[int]]:
        """Return drafts for requests that have just sampled, one row each; empty where there are none.

        `batch_size` counts all rows of the step, those inside prompts included.
        """
        if self._limits.scheduled(batch_size) == 0:
            self._switch_off(requests)
            return [[] for _ in requests]
        limits = self._limits.rows(requests, batch_size)
        ready = [(r, k) for r, k in zip(requests, limits, strict=True) if k and not r.retired and self._started(r)]
        drafts = self._propose([r for r, _ in ready], [k for _, k in ready]) if ready else {}
        return [drafts.get(request, []) for request in requests]

    def finish(self, request: SeenRequest, reason: FinishReason) -> None:
        """Tell the proposer that a request ended or lost its state, if it knows the request."""
        if not request.started:
            return
        request.started = False
        try:
            with self._guard.call("finish"):
                self._proposer.finish(request.view, reason)
        except Exception as error:
            self._guard.failed("finish", error)

    def close(self) -> None:
        """Close the proposer."""
        try:
            with self._guard.call("close"):
                self._proposer.close()
        except Exception as error:
            self._guard.failed("close", error)

    def _switch_off(self, requests: Sequence[SeenRequest]) -> None:
        if self._traits.when_off == "retire":
            for request in requests:
                request.retired = True
                self.finish(request, "aborted")

    def _started(self, request: SeenRequest) -> bool:
        if not request.started:
            try:
                with self._guard.call("start"):
                    self._proposer.start(request.view)
            except Exception as error:
                self._guard.failed("start", error)
                return False
            request.started = True
        return True

    def _propose(self, batch: list[SeenRequest], limits: list[int]) -> dict[SeenRequest, list[int]]:
        max_draft = np.array(limits, np.int32)
        lengths = np.array([len(request) for request in batch], np.int32)
        view = BatchView(
            requests=[request.view for request in batch],
            run_len=lengths - 1,
            newest_known=np.ones(len(batch), np.bool_),
            max_draft=max_draft,
            noise=self._noise(batch, lengths),
        )
        try:
            draft = self._ask(view, max_draft)
        except Exception as error:
            self._guard.failed("propose", error)
            for request in batch:
                self.finish(request, "failed")
            return {}
        self._guard.succeeded()
        ends = np.cumsum(draft.lengths or (), dtype=np.int64)
        rows = np.split(draft.tokens, ends[:-1])
        return {request: row.tolist() for request, row in zip(batch, rows, strict=True)}

    def _ask(self, view: BatchView, max_draft: IntArray) -> Draft:
        """Return what is drafted for a view, checked against the host's own figures; raises what is wrong with it."""
        with self._guard.call("propose"):
            draft: object = self._proposer.propose(view)
            if not isinstance(draft, Draft):
                message = f"propose returned {type(draft).__name__}, not a Draft"
                raise ContractError(message)
            draft = draft.to_host()
        draft.check(max_draft, self._vocab_size, self._traits)
        return draft

    def _noise(self, batch: Sequence[SeenRequest], lengths: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Noise:
        """Return noise for drawing drafts, fresh in every step where a method draws independently of the target."""
        keys = [request_key(None, SEED, request.arrival) for request in batch]
        if not self._traits.shares_noise:
            keys = [request_key(None, key, len(request)) for key, request in zip(keys, batch, strict=True)]
        return Noise(np.array(keys, np.uint64), lengths, np.array([r.seq_index for r in batch], np.int32))
