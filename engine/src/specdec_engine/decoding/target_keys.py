"""The target's keys and values for a drafter's queries, in the pages that the target itself writes; it copies none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from specdec_core.draft import RequestView
from specdec_engine.decoding.lent import Lent, page_table
from specdec_engine.requests.request import Request
from specdec_nn.cache.arena import KVArena
from specdec_nn.hf.committed_keys import ArenaKeys, layers_with_keys
from specdec_nn.hf.model import FlatModel
from specdec_nn.ops.attention.reference import query_step


class SharedKeys:
    """A `specdec_core.target_keys.TargetKeys`."""

    def __init__(self, flat: FlatModel, arena: Callable[[], KVArena]) -> None:
        """Take the target's model, after its trial, and where its arena is to be found."""
        self._flat: FlatModel | None = flat
        self._places = layers_with_keys(flat)
        self._arena = arena
        self._lent = Lent()

    @contextmanager
    def lent(self, running: Sequence[Request]) -> Iterator[None]:
        """Let the keys of these requests be read, until the target is about to run itself."""
        with self._lent.lent(running):
            yield

    def of(self, requests: Sequence[RequestView]) -> ArenaKeys:
        """Return the keys of requests."""
        assert self._flat is not None  # no call comes after close
        own = [self._lent.own(request) for request in requests]
        rows = np.array([request.run_len for request in own], np.int32)
        arena = self._arena()
        return ArenaKeys(self._flat, self._places, arena, query_step(page_table(own), rows, arena.page_size))

    def release(self, request: RequestView) -> None:
        """Have nothing to drop."""

    def close(self) -> None:
        """Let the model go."""
        self._flat = None

    def memory_bytes(self) -> int:
        """Return 0: all pages are the target's."""
        return 0
