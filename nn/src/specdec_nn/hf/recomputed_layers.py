"""A target's first layers over keys and values of their own, for hosts whose target keeps its own elsewhere.

Every id runs through these layers a second time here. Row i of a request is its i-th id, at position i.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import IntArray, RequestView
from specdec_core.first_layers import Round
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.first_layers import exit_states
from specdec_nn.hf.model import FlatModel
from specdec_nn.ops.attention.reference import AttentionStep

CATCH_UP_ROWS = 512  # of a request in one round: what a host waits for one that comes with a long prompt


class RecomputedLayers:
    """A `specdec_core.first_layers.FirstLayers` with a cache of its own."""

    def __init__(self, part: FlatModel, cache: DraftCache) -> None:
        """Take the cut model, and its cache with room for all requests and a round of rows for each."""
        self._part: FlatModel | None = part
        self._cache = cache
        self._ran: dict[str, list[int]] = {}  # ids that have rows, in order
        self._round = Round()

    def begin(self, requests: Sequence[RequestView], rows: Sequence[int]) -> list[int]:
        """Run the known ids without rows, but for the newest; a request that has not been caught up is granted 0."""
        granted = []
        pieces: list[tuple[str, IntArray]] = []
        for request, wanted in zip(requests, rows, strict=True):
            known = request.tokens[:-1]
            missing = known[self._cut(request.id, known) :]
            granted.append(0 if len(missing) > CATCH_UP_ROWS else wanted)
            if len(missing):
                pieces.append((request.id, missing[:CATCH_UP_ROWS]))
        if pieces:
            ids = torch.from_numpy(np.concatenate([ids for _, ids in pieces]).astype(np.int64))
            part, positions, step = self._append([name for name, _ in pieces], [len(ids) for _, ids in pieces], ids)
            part.run(ids, positions, step, self._cache.arena, None)
        self._round.begin([request.id for request in requests], granted)
        return granted

    def run(self, requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
        """Run one row of each request through layers, final norm and head."""
        part, positions, step = self._next(requests, depth, ids)
        logits = part.run(ids, positions, step, self._cache.arena, torch.arange(len(ids)))
        assert logits is not None  # rows are asked for
        return logits

    def states(self, requests: Sequence[RequestView], depth: int, ids: Tensor) -> Tensor:
        """Run one row of each request through the layers."""
        part, positions, step = self._next(requests, depth, ids)
        return exit_states(part, ids, positions, step, self._cache.arena)

    def release(self, request: RequestView) -> None:
        """Give a request's rows back."""
        self._ran.pop(request.id, None)
        self._round.drop(request.id)
        self._cache.close(request.id)

    def close(self) -> None:
        """Give everything back, and let the model go."""
        self._ran.clear()
        self._cache.clear()
        self._part = None

    def memory_bytes(self) -> int:
        """Return the size of the cache."""
        return self._cache.memory_bytes()

    def _cut(self, name: str, known: IntArray) -> int:
        """Drop the rows of ids that are not the request's, and return how many are left."""
        if name not in self._ran:
            self._cache.open(name)
            self._ran[name] = []
        ran = self._ran[name]
        held = np.array(ran[: len(known)], np.int64)
        differs = np.flatnonzero(held != known[: len(held)])
        kept = int(differs[0]) if len(differs) else len(held)
        del ran[kept:]
        self._cache.cut(name, kept)
        return kept

    def _next(
        self, requests: Sequence[RequestView], depth: int, ids: Tensor
    ) -> tuple[FlatModel, Tensor, AttentionStep]:
        """Return the model, and the positions and attention tables of the next row of each request."""
        names = [request.id for request in requests]
        self._round.run(names, depth)
        return self._append(names, [1] * len(names), ids)

    def _append(
        self, names: Sequence[str], counts: Sequence[int], ids: Tensor
    ) -> tuple[FlatModel, Tensor, AttentionStep]:
        """Note rows that are about to run; return the model, their positions and attention tables."""
        assert self._part is not None  # no call comes after close
        starts = [len(self._ran[name]) for name in names]
        positions = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        step = self._cache.append(names, counts)
        at = 0
        for name, count in zip(names, counts, strict=True):
            self._ran[name] += ids[at : at + count].tolist()
            at += count
        return self._part, torch.cat(positions), step
