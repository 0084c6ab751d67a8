"""The target's first layers for a drafter, over the pages that the target itself has of requests; it drafts nothing.

A drafter's rows stand where the target will write the same ids, behind what is committed. The target writes before it
reads, so nothing has to be taken back, and nothing of a request is kept here from one step to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import RequestView
from specdec_core.first_layers import Round
from specdec_engine.decoding.lent import Lent, page_table
from specdec_engine.requests.request import Request
from specdec_nn.cache.arena import KVArena
from specdec_nn.hf.first_layers import exit_states
from specdec_nn.hf.model import FlatModel
from specdec_nn.ops.attention.reference import AttentionStep

Positions = npt.NDArray[np.int64]


class SharedLayers:
    """A `specdec_core.first_layers.FirstLayers` that computes no key and no value of a committed id."""

    def __init__(self, part: FlatModel, arena: Callable[[], KVArena]) -> None:
        """Take the cut model, and where the target's arena is to be found."""
        self._part: FlatModel | None = part
        self._arena = arena
        self._lent = Lent()
        self._round = Round()

    @contextmanager
    def lent(self, running: Sequence[Request]) -> Iterator[None]:
        """Let rows of these requests run, until the target is about to run itself."""
        try:
            with self._lent.lent(running):
                yield
        finally:
            self._round.end()

    def begin(self, requests: Sequence[RequestView], rows: Sequence[int]) -> list[int]:
        """Reserve room in the pages of the requests; the first of them get theirs before the others."""
        granted = []
        for request, wanted in zip(requests, rows, strict=True):
            own = self._lent.own(request)
            fits = (n for n in range(wanted, 0, -1) if self._arena().reserve(own.segment, own.run_len + n))
            granted.append(next(fits, 0))
        self._round.begin([request.id for request in requests], granted)
        return granted

    def run(self, requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
        """Run one row of each request through layers, final norm and head."""
        part, positions, step = self._next(requests, depth)
        logits = part.run(ids, positions, step, self._arena(), torch.arange(len(positions)))
        assert logits is not None  # rows are asked for
        return logits

    def states(self, requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
        """Run one row of each request through the layers."""
        part, positions, step = self._next(requests, depth)
        return exit_states(part, ids, positions, step, self._arena())

    def release(self, request: RequestView) -> None:
        """Forget the request."""
        self._round.drop(request.id)

    def close(self) -> None:
        """Let the model go."""
        self._part = None

    def memory_bytes(self) -> int:
        """Return 0: all pages are the target's."""
        return 0

    def _next(self, requests: Sequence[RequestView], depth: int) -> tuple[FlatModel, Tensor, AttentionStep]:
        """Return the model, and the positions and attention tables of the next row of each request."""
        assert self._part is not None  # no call comes after close
        self._round.run([request.id for request in requests], depth)
        own = [self._lent.own(request) for request in requests]
        positions: Positions = np.array([request.run_len + depth for request in own], np.int64)
        return self._part, torch.from_numpy(positions), _tables(self._arena(), own, positions)


def _tables(arena: KVArena, requests: Sequence[Request], positions: Positions) -> AttentionStep:
    """Return the attention tables of one row of each request."""
    count = len(requests)
    slots = [arena.slots(r.segment, at, 1) for r, at in zip(requests, positions.tolist(), strict=True)]
    return AttentionStep(
        slots=np.concatenate(slots),
        seg_start=np.arange(count, dtype=np.int32),
        seg_rows=np.ones(count, np.int32),
        seg_context=positions.astype(np.int32),
        seg_prompt=np.zeros(count, np.bool_),
        page_table=page_table(requests),
        page_size=arena.page_size,
    )
