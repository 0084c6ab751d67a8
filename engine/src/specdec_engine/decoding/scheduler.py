"""Which requests run and what each of them runs in the next step: admission, prompt chunks, preemption."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from specdec_core.draft import Draft
from specdec_engine.decoding import trees
from specdec_engine.decoding.target import Target
from specdec_engine.memory.prefix_cache import PrefixCache
from specdec_engine.requests.request import Request
from specdec_engine.requests.rope_lengths import RopeLengths
from specdec_engine.requests.scheduled_rows import ScheduledRows


class Scheduler:
    """Continuous batching over one KV budget; requests join and leave between steps.

    Decode rows go first. One prompt chunk budget a step is shared by the requests that still have known ids to run,
    so long prompts do not hold up running requests. When pages run out, the youngest request gives its pages back,
    waits in front of the queue, and later runs its known ids again. A request does not run what it can take over from
    another one, and waits a step where an earlier one is about to run the same page.
    """

    def __init__(
        self, target: Target, prefix: PrefixCache, max_num_seqs: int, on_preempt: Callable[[Request], None]
    ) -> None:
        """`on_preempt` is told of a request before its state is dropped."""
        self._target = target
        self.prefix = prefix
        self._max_num_seqs = max_num_seqs
        self._on_preempt = on_preempt
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def admit(self, num_draft: int) -> None:
        """Move waiting requests to the running ones while their known ids and one step of drafts fit."""
        arena, lengths = self._target.arena, self._target.rope_lengths
        if lengths is not None:
            self._renew(lengths)
        while self.waiting and len(self.running) < self._max_num_seqs:
            request = self.waiting[0]
            if lengths is not None:
                request.table = lengths.table(request)
            taken = self.prefix.take(request)
            if not arena.reserve(request.segment, min(len(request) + num_draft + 1, arena.num_tokens)):
                self._give_back(request)
                break
            self.prefix.count(request, len(request), taken)
            self.running.append(self.waiting.popleft())
        self.running.sort(key=lambda request: request.arrival)

    def _renew(self, lengths: RopeLengths) -> None:
        """Let requests that have outgrown their rotary tables run their known ids again."""
        for request in [r for r in reversed(self.running) if lengths.table(r) != r.table]:
            self._put_back(request)

    def remove(self, request: Request) -> None:
        """Forget a request and give its pages back."""
        self._target.arena.release(request.segment)
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def plan(self, decode: Sequence[ScheduledRows], draft: Draft) -> tuple[list[ScheduledRows], Draft]:
        """Return what runs in this step, and the draft of the decode rows that are still in it.

        `decode` are the newest ids that wait to be run, `draft` has one row for each. Decode rows come first, in the
        order of the draft's rows.
        """
        if len(draft.tokens):
            ends = np.cumsum(draft.lengths or ()).tolist()
            grown = [None] * len(ends)  # whose form the target's rows get on the device
            split = grown if draft.is_grown else trees.split(draft, self._target.ancestor_bits)
            ids = np.zeros(ends[-1], np.int32) if draft.on_device else draft.tokens
            for item, tree, length, end in zip(decode, split, draft.lengths or (), ends, strict=True):
                if length:
                    part = None if draft.part is None else draft.part[end - length : end]
                    item.add_drafts(ids[end - length : end], tree, part)
        items = self._fit([*decode, *self._chunks()])
        kept = set(items)
        draft = draft.select([row for row, item in enumerate(decode) if item in kept])
        if draft.on_device:
            at = 0
            for item in (item for item in decode if item in kept):
                item.first_draft, at = at, at + item.num_draft
        return items, draft

    def _chunks(self) -> list[ScheduledRows]:
        """Return pieces of known ids that still have to run, within this step's budget."""
        budget = self._target.prefill_chunk_size
        width = self._target.decode_width
        items: list[ScheduledRows] = []
        coming: set[bytes] = set()
        for request in self.running:
            if request.newest_known:
                continue
            self.prefix.count(request, 0, self.prefix.take(request))
            if self.prefix.waits(request, coming):
                continue
            if width is not None and request.run_len >= request.prompt_len:
                # Emitted ids run again in decode forwards: rows of another width would round differently.
                end, prompt = min(len(request), request.run_len + width), False
            elif budget > 0:
                end, prompt = min(len(request) if width is None else request.prompt_len, request.run_len + budget), True
                budget -= budget if width is not None else end - request.run_len
            else:
                continue
            ids = request.tokens[request.run_len : end]
            wants = int(end == len(request) and not request.only_scored)
            items.append(ScheduledRows(request, request.run_len, ids, prompt, wants=wants))
            coming.update(self.prefix.coming(request, end))
        return items

    def _fit(self, items: list[ScheduledRows]) -> list[ScheduledRows]:
        """Reserve pages for all items; preempt the youngest running requests until the rest fits."""
        fitting = list(items)
        for item in sorted(items, key=lambda item: item.request.arrival):
            while item in fitting and not self._target.arena.reserve(item.request.segment, item.start + len(item.ids)):
                victim = self.running[-1]
                self._preempt(victim)
                fitting = [other for other in fitting if other.request is not victim]
        return fitting

    def preempt_all(self) -> None:
        """Let every running request run its known ids again."""
        while self.running:
            self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self._put_back(request)

    def _put_back(self, request: Request) -> None:
        self._on_preempt(request)
        request.preemptions += 1
        self._give_back(request)
        self.running.remove(request)
        self.waiting.appendleft(request)

    def _give_back(self, request: Request) -> None:
        self._target.arena.release(request.segment)
        request.run_len = request.taken = 0
