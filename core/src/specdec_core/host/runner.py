"""Calls one proposer as the contract requires: when, for whom, with which rows, and what happens if it misbehaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray
from specdec_core.errors import ContractError
from specdec_core.host.budget import DraftBudget
from specdec_core.host.containment import Containment
from specdec_core.host.requests import HostRequest, Slot
from specdec_core.host.rows import CommittedRows, deliver
from specdec_core.host.verified import Answers, verified_rows
from specdec_core.noise import Noise, request_key
from specdec_core.protocols import MeasuresMemory, Proposer, TimesParts
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class _State:
    """What the proposer was told of a request, and what it has yet to be told.

    started    the proposer knows it
    retired    the proposer shall not see it again
    delivered  the position after the last row that the proposer was given
    held       rows that the proposer keeps of it
    pending    committed rows that the proposer was not given
    """

    request: HostRequest
    started: bool = False
    retired: bool = False
    delivered: int = 0
    held: int = 0
    pending: list[CommittedRows] = field(default_factory=list)


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


class ProposerRunner:
    """The host half of the contract for one proposer.

    A decoding loop calls `commit` with the rows that its forward ran and kept, `propose` before the next forward, and
    `finish` when a request ends or loses its place. A call that goes wrong costs its requests the drafts of one step.
    """

    def __init__(
        self,
        proposer: Proposer,
        traits: MethodTraits,
        budget: DraftBudget,
        vocab_size: int,
        containment: Containment,
        max_rows: int | None = None,
        *,
        leaves_ids: bool = False,
    ) -> None:
        """Take the parts of a session; drafted ids are below `vocab_size`.

        With `leaves_ids` the host takes drafts whose ids are on a device (`Draft.on_device`), and reads them with what
        the step gives; else they are read here.

        `max_rows` is how many rows the proposer's own cache holds over all requests, for hosts that size it below what
        all requests may need; None: it holds them all.
        """
        self._proposer: Proposer = proposer
        self._traits: Final = traits
        self._vocab_size: Final = vocab_size
        self.max_rows: Final = max_rows if traits.rows != "last" and traits.weights != "none" else None
        self._states: Final[dict[str, _State]] = {}
        self.budget: Final = budget
        self.containment: Final = containment
        self._leaves_ids: Final = leaves_ids
        self._answers: dict[str, Answers] = {}  # that the proposer was not shown
        self._asked: frozenset[str] = frozenset()  # requests of this step that were to get drafts
        self._proposed: dict[str, int] = {}  # drafts of this step before some were cut, by request
        self.full_at: str | None = None  # the first request that found the proposer's cache full

    @property
    def drafts_trees(self) -> bool:
        """Whether limits count nodes, so that the host has to cut drafts that stand too deep (`DraftBudget.depth`)."""
        return self._traits.shape == "tree"

    @property
    def wants_rows(self) -> bool:
        """Whether committed rows have to be given to `commit`."""
        return self._traits.rows != "none"

    @property
    def verified_top_k(self) -> int:
        """How many next ids of each verified row have to be given to `answer`; 0: none, and no call of it."""
        return 0 if self.containment.is_off() else self._traits.verified_top_k

    def answer(self, request: HostRequest, answers: Answers) -> None:
        """Note what the target answered at the rows of a request's newest id and drafts, rejected ones included.

        They are for the next `propose` with a slot of the request, whether or not the proposer is called for it then.
        """
        if self.verified_top_k:
            self._answers[request.id] = answers

    def commit(
        self, request: HostRequest, start: int, count: int, hidden: Tensor | None = None, aux: Tensor | None = None
    ) -> None:
        """Note rows that the target has run and kept, positions start .. start + count - 1; see `CommittedRows`.

        Rows below what was delivered mean that the request lost its place and is run again.
        """
        if not count or not self.wants_rows or self.containment.is_off():
            return
        state = self._state(request)
        if state.retired:
            return
        if start < state.delivered:
            self._release(state, "preempted")
        state.pending.append(CommittedRows(start, count, hidden, aux))

    def propose(self, slots: Sequence[Slot], batch_size: int | None = None) -> Draft:
        """Return one draft row for each slot, in host form; a row is empty where nothing was drafted.

        `slots` are the running requests, those inside their prompts included; a host that cannot name the latter leaves
        them out and gives the number of all as `batch_size`.
        """
        self.containment.step = None
        self._asked = frozenset()
        self._proposed = {}
        answers = {slot.request.id: self._answers.pop(slot.request.id, None) for slot in slots} if self._answers else {}
        batch_size = len(slots) if batch_size is None else batch_size
        empty = Draft.empty(len(slots))
        if self.containment.is_off():
            return empty
        states = [self._state(slot.request) for slot in slots]
        if self.budget.scheduled(batch_size) == 0:
            for state in states:
                self._skip(state)
            return empty
        live = [(slot, state) for slot, state in zip(slots, states, strict=True) if not state.retired]
        ready = [slot for slot, _ in live if slot.newest_known]
        limits = dict(zip((s.request.id for s in ready), self.budget.limits(ready, batch_size), strict=True))
        self._asked = frozenset(name for name, most in limits.items() if most)
        batch = [(slot, state, limits.get(slot.request.id, 0)) for slot, state in live]
        batch = [entry for entry in batch if self._takes_part(*entry)]
        self._make_room([(slot, state) for slot, state, _ in batch])
        batch = [(slot, state, k) for slot, state, k in batch if not state.retired and self._start(state)]
        draft = self._call(batch, answers) if batch else None
        if draft is None:
            return empty
        # Slots that were not in the batch get empty rows, and the batch keeps the order of slots: only lengths differ.
        lengths = {state.request.id: n for (_, state, _), n in zip(batch, draft.lengths or (), strict=True)}
        draft.lengths = [lengths.get(slot.request.id, 0) for slot in slots]
        return draft

    def asked(self, request: HostRequest) -> bool:
        """Return whether the proposer was to draft for a request in this step."""
        return request.id in self._asked

    def proposed(self, request: HostRequest) -> int:
        """Return how many drafts the proposer made for a request in this step, those that were cut included."""
        return self._proposed.get(request.id, 0)

    def retire(self, request: HostRequest) -> None:
        """Draft no more for a request until it ends."""
        state = self._state(request)
        state.retired = True
        self._release(state, "aborted")

    def finish(self, request: HostRequest, reason: FinishReason) -> None:
        """Tell the proposer that a request ended or lost its place ("preempted"), if it knows the request.

        The controller is told of those that ended.
        """
        if reason != "preempted":
            self.budget.finished(request.id)
        state = self._states.get(request.id)
        if state is None:
            return
        self._release(state, reason)
        if reason != "preempted":
            del self._states[request.id]
            self._proposed.pop(request.id, None)

    def preempt(self, names: Iterable[str]) -> None:
        """Tell the proposer that requests, by their ids, lost their place and will be run again."""
        for name in names:
            if name in self._states:
                self._release(self._states[name], "preempted")

    def part_seconds(self) -> list[float]:
        """Return the seconds of each part of a method that is made of others; none where the proposer does not tell."""
        if not isinstance(self._proposer, TimesParts):
            return []
        try:
            with self.containment.call("part_seconds"):
                return [float(seconds) for seconds in self._proposer.part_seconds()]
        except Exception as error:
            self.containment.failed("part_seconds", error)
            return []

    def memory_bytes(self) -> int | None:
        """Return the bytes that the proposer reports as its own; None if it reports none."""
        if not isinstance(self._proposer, MeasuresMemory):
            return None
        try:
            with self.containment.call("memory_bytes"):
                return int(self._proposer.memory_bytes())
        except Exception as error:
            self.containment.failed("memory_bytes", error)
            return None

    def close(self) -> None:
        """Close the proposer and let it go, with its weights; no call comes after it."""
        proposer, self._proposer = self._proposer, _Closed()
        try:
            with self.containment.call("close"):
                proposer.close()
        except Exception as error:
            self.containment.failed("close", error)

    def _state(self, request: HostRequest) -> _State:
        state = self._states.get(request.id)
        if state is None:
            state = self._states[request.id] = _State(request, retired=request.max_draft == 0)
        return state

    def _takes_part(self, slot: Slot, state: _State, k: int) -> bool:
        if not self.wants_rows:
            return k > 0
        return bool(state.pending) or slot.newest_known

    def _skip(self, state: _State) -> None:
        """Drop rows that will not be delivered; the proposer sees a gap, or does not see the request again."""
        state.pending = []
        if self._traits.when_off == "retire" and not state.retired:
            state.retired = True
            self._release(state, "aborted")

    def _make_room(self, batch: Sequence[tuple[Slot, _State]]) -> None:
        """Retire requests, the youngest first, until the rows of the others fit into the proposer's cache."""
        if self.max_rows is None:
            return
        wanted = {state.request.id: state.held for state in self._states.values() if state.started}
        wanted.update((state.request.id, self._held_after(slot, state)) for slot, state in batch)
        total = sum(wanted.values())
        for name in sorted(wanted, key=lambda name: -self._states[name].request.arrival):
            if total <= self.max_rows:
                return
            total -= wanted[name]
            self.full_at = self.full_at or name
            self.retire(self._states[name].request)

    def _held_after(self, slot: Slot, state: _State) -> int:
        """Return the rows that the proposer holds after a call; one that reads ids alone catches up with all."""
        if self._traits.rows == "all":
            return state.held + sum(rows.count for rows in state.pending)
        return slot.run_len

    def _start(self, state: _State) -> bool:
        if state.started:
            return True
        try:
            with self.containment.call("start"):
                self._proposer.start(state.request.view)
        except Exception as error:
            state.pending = []
            self.containment.failed("start", error)
            return False
        state.started = True
        return True

    def _call(self, batch: Sequence[tuple[Slot, _State, int]], answers: Mapping[str, Answers | None]) -> Draft | None:
        max_draft: IntArray = np.array([k for _, _, k in batch], np.int32)
        view = self._view(batch, max_draft, answers)
        try:
            with self.containment.call("propose"):
                draft: object = self._proposer.propose(view)
                if not isinstance(draft, Draft):
                    message = f"propose returned {type(draft).__name__}, not a Draft"
                    raise ContractError(message)
                draft = draft if self._leaves_ids and draft.on_device else draft.to_host()
            draft.check(max_draft, self._vocab_size, self._traits)
        except Exception as error:
            self.containment.failed("propose", error)
            for _, state, _ in batch:
                self._release(state, "failed")
            return None
        self.containment.succeeded()
        lengths = draft.lengths or ()
        self._proposed = {state.request.id: n for (_, state, _), n in zip(batch, lengths, strict=True)}
        return self.budget.trim([state.request.view for _, state, _ in batch], draft)

    def _view(
        self, batch: Sequence[tuple[Slot, _State, int]], max_draft: IntArray, answers: Mapping[str, Answers | None]
    ) -> BatchView:
        requests = [state.request for _, state, _ in batch]
        n = self._traits.verified_top_k
        verified = verified_rows([answers.get(request.id) for request in requests], n) if n else None
        rows = None
        if self.wants_rows:
            pending, delivered = [s.pending for _, s, _ in batch], [s.delivered for _, s, _ in batch]
            rows = deliver(requests, pending, delivered, self._traits)
        for slot, state, _ in batch:
            state.held = self._held_after(slot, state)
            if state.pending:
                state.delivered = state.pending[-1].end
                state.pending = []
        return BatchView(
            requests=[request.view for request in requests],
            run_len=np.array([slot.run_len for slot, _, _ in batch], np.int32),
            newest_known=np.array([slot.newest_known for slot, _, _ in batch], np.bool_),
            max_draft=max_draft,
            noise=self._noise(requests),
            rows=rows,
            verified=verified,
        )

    def _noise(self, requests: Sequence[HostRequest]) -> Noise:
        """Return the noise for drawing drafts: the target's own if the method shares it, else fresh in every step.

        A position is drafted again after a rejection before it. Where the acceptance of early drafts may depend on
        later ones (block verification), drawing those again from the same noise would bias the output. The keys are
        hashes of the request's, so that no drafter can compute the noise that decides about its drafts.
        """
        keys = [request.key for request in requests]
        if not self._traits.shares_noise:
            keys = [request_key(None, request.key, len(request)) for request in requests]
        return Noise(
            keys=np.array(keys, np.uint64),
            positions=np.array([len(request) for request in requests], np.int32),
            seq_index=np.array([request.seq_index for request in requests], np.int32),
        )

    def _release(self, state: _State, reason: FinishReason) -> None:
        """Let the proposer forget a request, if it knows it."""
        state.pending, state.delivered, state.held = [], 0, 0
        self._answers.pop(state.request.id, None)
        if not state.started:
            return
        state.started = False
        try:
            with self.containment.call("finish"):
                self._proposer.finish(state.request.view, reason)
        except Exception as error:
            self.containment.failed("finish", error)
