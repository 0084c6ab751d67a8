"""What makes a plain decoder a speculative one: drafts before a forward, rows and counts after it; runs no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.draft import Draft, FinishReason, IntArray
from specdec_core.host.requests import Slot
from specdec_core.host.runner import ProposerRunner
from specdec_core.host.verified import Answers
from specdec_core.stats import StepStats
from specdec_engine.decoding import trees
from specdec_engine.decoding.contained import ContainedVerifier
from specdec_engine.decoding.target import ForwardOutput
from specdec_engine.requests.request import Request
from specdec_engine.requests.rope_lengths import RopeLengths
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.requests.stopping import StopRules
from specdec_nn.device_copies import to_device


@dataclass(slots=True)
class Speculation:
    """The proposer and the verifier of one engine.

    top_ids    the kernel of that op
    max_draft  what admission leaves room for
    exact      the verifier is not lossy
    observe    is told of every step that ran rows
    lengths    where rotary tables depend on the length: drafts end where a text would need others
    by_length  rows of the target are turned by the length of their text, which is needed here before it runs
    """

    runner: ProposerRunner
    verifier: ContainedVerifier
    top_ids: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    max_draft: int
    exact: bool
    observe: Callable[[StepStats], None]
    lengths: RopeLengths | None = None
    by_length: bool = False

    def propose(self, running: Sequence[Request], rules: StopRules) -> tuple[list[ScheduledRows], Draft]:
        """Return the newest ids that wait to be run, and one row of drafts for each."""
        # n + k + 1 ids must fit: the last draft needs a place, and so does the id drawn after it.
        slots = [Slot(r, r.run_len, r.newest_known, self._room(r, rules)) for r in running]
        draft = self.runner.propose(slots)
        # Requests inside their prompts have empty rows, so that only lengths differ.
        drafted = [
            (request, slot, length)
            for request, slot, length in zip(running, slots, draft.lengths or (), strict=True)
            if slot.newest_known
        ]
        draft.lengths = [length for _, _, length in drafted]
        runner = self.runner
        return [ScheduledRows.newest(r, runner.proposed(r), runner.asked(r)) for r, _, _ in drafted], draft

    def within(self, items: Sequence[ScheduledRows], draft: Draft, rules: StopRules, room: int) -> Draft:
        """Return the drafts of a method of trees without nodes that have no place; chains have one in any case.

        `room` is how many positions the KV arena has: each node of a tree takes one. Of trees whose form is on a device
        (`Draft.is_grown`) nodes behind the end of a text stay, since nothing that is drawn there is emitted; they are
        read where the target's rows need to be known here, or all nodes do not fit.
        """
        if not self.runner.drafts_trees:
            return draft
        most = [room - len(item.request) for item in items]
        if draft.is_grown:
            if not self.by_length and all(n <= own for n, own in zip(draft.lengths or (), most, strict=True)):
                for item in items:
                    item.deepest = rules.budget(item.request) - 1
                return draft
            draft = draft.to_host()
        # Chains of such a method have no limit of depth either.
        slots = [Slot(r, r.run_len, r.newest_known, self._room(r, rules)) for r in (item.request for item in items)]
        return trees.within(draft, [self.runner.budget.depth(slot) for slot in slots], most)

    def _room(self, request: Request, rules: StopRules) -> int:
        own = None if self.lengths is None else self.lengths.room(request)
        left = rules.budget(request) - 1
        return left if own is None else min(own, left)

    def answers(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return what the target answered at rows of logits [R, V], the model's own, where they are: ids, logprobs.

        Nothing unless the method asks for it.
        """
        n = self.runner.verified_top_k
        return self.top_ids(logits, n) if n else ()

    def answer(self, drawn: Sequence[ScheduledRows], answers: Sequence[npt.NDArray[Any]]) -> None:
        """Note what the target answered at verified rows, as `answers` gave it; no-op where it gave nothing."""
        if not answers:
            return
        ids, logprobs = answers
        at = 0
        for item in drawn:
            rows = slice(at, at + item.wants)
            tokens = item.ids[len(item.ids) - item.wants :]
            own = Answers.of(tokens, item.parents, item.accepted, ids[rows], logprobs[rows])
            self.runner.answer(item.request, own)
            at += item.wants

    def commit(self, item: ScheduledRows, committed: range | IntArray, out: ForwardOutput, at: int) -> None:
        """Note rows that ran and stay; `at` is the first row of the item in what the forward gave."""
        if not self.runner.wants_rows:
            return
        rows: slice | Tensor = slice(at, at + len(committed))
        some = out.hidden if out.hidden is not None else out.aux
        if not isinstance(committed, range) and some is not None:
            rows = to_device(committed.astype(np.int64) + at, some.device)
        hidden = None if out.hidden is None else out.hidden[rows]
        aux = None if out.aux is None else out.aux[rows]
        self.runner.commit(item.request, item.start, len(committed), hidden, aux)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Tell the proposer that a request ended or lost its place."""
        self.runner.finish(request, reason)

    def report(self, items: Sequence[ScheduledRows], rows: int, seconds: dict[str, float]) -> None:
        """Tell the observer of a step, prompts left out: what ran, rows with padding, and seconds by phase."""
        decode = [item for item in items if item.wants and not item.prompt]
        stats = StepStats(
            request_ids=[item.request.id for item in decode],
            proposed=[item.proposed for item in decode],
            drafted=[item.num_draft for item in decode],
            accepted=[len(item.accepted) for item in decode],
            emitted=[item.kept for item in decode],
            depths=[item.draft_depth for item in decode],
            asked=[item.asked for item in decode],
            nodes=[item.accepted.tolist() for item in decode] if self.runner.drafts_trees else None,
            parts=None if all(item.part is None for item in decode) else [_parts(item) for item in decode],
            failed=self.runner.containment.step,
            rows=rows,
            prompt_rows=sum(len(item.ids) for item in items) - sum(1 + item.num_draft for item in decode),
            seconds=seconds,
        )
        self.runner.budget.observe(stats)
        self.observe(stats)


def _parts(item: ScheduledRows) -> list[int]:
    parts: list[int] = [] if item.part is None else item.part.tolist()
    return parts
