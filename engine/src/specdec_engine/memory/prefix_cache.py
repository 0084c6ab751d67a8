"""Prefix reuse: which committed pages a request takes over instead of running their ids again; it runs no model.

A page is known by a digest of its ids and of the key of the page before it, so that equal keys mean equal texts from
the first id on. Weights are the same for every request of an engine; where they change, `reset` makes all keys new.
Where rotary tables or salts differ between requests, so do keys (`Request.table`, `Request.cache_salt`). Design:
docs/engine.md, "Prefix reuse".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_engine.decoding.target import ForwardOutput, Target
from specdec_engine.requests.page_keys import PageKeys
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_nn.device_copies import all_to_device, to_device


class PrefixCache:
    """What requests of one engine take over from each other.

    With a decode width, a request gets the very bits that it would compute: only pages out of full prompt chunks
    serve, in multiples of whole chunks. Without one, every full page of committed ids does.

    queries  ids of the requests that looked for a prefix, each counted once, when it first ran
    hits     those of them that were taken over
    """

    def __init__(self, target: Target, *, enabled: bool, keeps_rows: bool) -> None:
        """`keeps_rows`: the proposer is given every row, so those of published pages are kept for later requests."""
        self._target = target
        self._enabled = enabled
        self._keeps_rows = enabled and keeps_rows
        self._page = target.arena.page_size
        self._chunk = None if target.decode_width is None else target.prefill_chunk_size
        self._unit = self._page if self._chunk is None else math.lcm(self._page, self._chunk)
        self._generation = 0
        self.queries = self.hits = 0

    def take(self, request: Request) -> int:
        """Let a request take over what is there behind its run positions; return how many positions.

        The newest id is never among them, and of a request that has emitted ids neither is the one before it.
        """
        if not self._may_take(request):
            return 0
        keys = self._keys(request, self._most(request) // self._page)[request.run_len // self._page :]
        count = self._target.arena.find(keys) * self._page // self._unit * self._unit
        if count:
            self._target.arena.take(request.segment, keys[: count // self._page])
            request.run_len += count
            request.taken += count
        return count

    def count(self, request: Request, queries: int, hits: int) -> None:
        """Count what a request looked for and took; what one takes after a preemption is counted nowhere."""
        if self._reads(request) and not request.preemptions:
            self.queries += queries
            self.hits += hits
            request.num_cached_tokens += hits

    def waits(self, request: Request, coming: set[bytes]) -> bool:
        """Return whether the next page of a request is among those that others are about to compute."""
        if not coming or not self._may_take(request):
            return False
        index = request.run_len // self._page
        return self._keys(request, index + 1)[index] in coming

    def coming(self, request: Request, end: int) -> Sequence[bytes]:
        """Return the keys of pages, publishable in time, that running up to position `end` begins or goes on with."""
        if not self._is_current(request):
            return ()
        last = min(-(-end // self._page), self._publishable(request, len(request)) // self._page)
        return self._keys(request, last)[request.run_len // self._page :]

    def publish(self, request: Request) -> None:
        """Let others find what a request has run and kept; to be called when accepted rows have been moved together."""
        count = self._publishable(request, min(request.run_len, len(request))) // self._page
        if count > request.segment.fixed and self._is_current(request):
            self._target.arena.publish(request.segment, self._keys(request, count))

    def keep_rows(self, items: Iterable[ScheduledRows], out: ForwardOutput) -> None:
        """Keep the states of a step's committed rows by their slots, if a proposer may have to be given them again."""
        if not self._keeps_rows or (out.hidden is None and out.aux is None):
            return
        arena, at = self._target.arena, 0
        slots, rows = [], []
        for item in items:
            committed = np.asarray(item.committed, np.int64)
            slots.append(arena.slots(item.request.segment, item.start, len(committed)))
            rows.append(committed + at)
            at += len(item.ids)
        to, which = (np.concatenate(part).astype(np.int64) for part in (slots, rows))
        with torch.inference_mode():
            for name, states in (("hidden", out.hidden), ("aux", out.aux)):
                if states is not None:
                    kept = arena.beside(name, states)
                    target, source = all_to_device((to, which), states.device)
                    kept.index_copy_(0, target, states[source])

    def rows_of(self, request: Request, start: int, count: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the states (hidden [count, H], aux [count, layers, H]) that were kept of positions from `start` on."""
        if not self._keeps_rows:
            return None, None
        arena = self._target.arena
        slots = arena.slots(request.segment, start, count, written=False).astype(np.int64)
        hidden, aux = (arena.kept_beside(name) for name in ("hidden", "aux"))
        with torch.inference_mode():
            # mypy knows no length of a tuple that is made of a generator.
            return tuple(None if kept is None else kept[to_device(slots, kept.device)] for kept in (hidden, aux))  # type: ignore[return-value]

    def reset(self) -> None:
        """Forget everything; requests that run keep what they have, and publish nothing more."""
        self._target.arena.forget()
        self._generation += 1

    def _reads(self, request: Request) -> bool:
        """Whether a request may skip positions: not if it wants to know what the model gives at each of them."""
        return self._enabled and request.prompt_logprobs is None

    def _is_current(self, request: Request) -> bool:
        """Whether what a request holds may be shared: it began after the last `reset`, or has not begun."""
        if not self._enabled:
            return False
        keys = request.page_keys
        if not request.run_len and (keys.generation, keys.table) != (self._generation, request.table):
            request.page_keys = PageKeys(self._generation, request.table, request.cache_salt)
        return request.page_keys.generation == self._generation

    def _may_take(self, request: Request) -> bool:
        if not self._reads(request) or request.run_len % self._unit or request.run_len >= self._most(request):
            return False
        return self._is_current(request) and request.segment.fixed * self._page == request.run_len

    def _most(self, request: Request) -> int:
        """Return how many positions a request may take over at the most."""
        most = len(request) - (1 if len(request) == request.prompt_len else 2)
        if self._chunk is not None:
            most = min(most, request.prompt_len)
        return most // self._unit * self._unit

    def _publishable(self, request: Request, run: int) -> int:
        """Return how many of the first `run` positions others may take over."""
        return run if self._chunk is None else min(run, request.prompt_len // self._chunk * self._chunk)

    def _keys(self, request: Request, count: int) -> list[bytes]:
        return request.page_keys.first(count, request.tokens, self._page)
