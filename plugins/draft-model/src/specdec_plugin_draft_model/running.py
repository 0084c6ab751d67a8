"""Runs the drafter's rows: which ids of each request have keys and values in its cache, and forwards that add to them.

It knows requests by name and texts as the drafter's ids; it picks nothing. Row i of a request is its i-th id, at
position i, so a cache of n rows covers exactly the first n ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.hf.model import FlatModel

Ids = npt.NDArray[np.int64]
CATCH_UP_ROWS = 512  # of a request in one call: what a host waits for a drafter that has a long prompt before it
FORWARD_ROWS = 2048  # of all requests in one forward, for the sake of memory


@dataclass(slots=True)
class Text:
    """What a request's text has become since the last call.

    name     the request
    settled  how many of its ids have a row and are as they were
    tail     [n] all ids after them
    masks    rows of a mask token behind the text, which leave nothing behind; None if no logits are asked for
    """

    name: str
    settled: int
    tail: Ids
    masks: int | None


@dataclass(slots=True)
class _Piece:
    name: str
    ids: Ids
    masks: int
    asked: int  # last rows whose logits are wanted


@dataclass(slots=True)
class _Rows:
    ran: list[int] = field(default_factory=list)  # ids whose rows are in the cache, in order
    held: int = 0  # rows in the cache, those of masks and of drafts not noted yet included


class Runner:
    """A causal language model over a cache of its own, for any number of requests."""

    def __init__(self, flat: FlatModel, cache: DraftCache, mask_token: int = 0) -> None:
        """Take a model that has passed its trial, its cache, and the id of mask rows."""
        self._flat = flat
        self._cache = cache
        self._mask = mask_token
        self._requests: dict[str, _Rows] = {}

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._flat.device

    def open(self, name: str) -> None:
        """Begin a request, with no rows."""
        self._cache.open(name)
        self._requests[name] = _Rows()

    def close(self, name: str) -> None:
        """Give a request's rows back; unknown names are ignored."""
        self._requests.pop(name, None)
        self._cache.close(name)

    def clear(self) -> None:
        """Give everything back."""
        self._requests.clear()
        self._cache.clear()

    def memory_bytes(self) -> int:
        """Return the size of the cache."""
        return self._cache.memory_bytes()

    def rows(self, name: str) -> int:
        """Return how many ids of a request have rows."""
        return len(self._requests[name].ran)

    def take_in(self, texts: Sequence[Text]) -> tuple[list[int], Tensor | None]:
        """Bring the cache to the texts, and return the logits of those that ask for them and are there.

        Rows of ids that are no longer the text's are dropped first. Of each request at most `CATCH_UP_ROWS` ids run in
        one call: a text with more is taken in over several, and has no logits before. Returns indices into `texts`, and
        logits [sum of 1 + masks, V_d]: of each text's last id and of the mask rows behind it, text after text.
        """
        pieces: list[_Piece] = []
        there: list[int] = []
        for i, text in enumerate(texts):
            piece = self._piece(text)
            if piece.asked:
                there.append(i)
            if len(piece.ids):
                pieces.append(piece)
        logits = [out for group in _groups(pieces) if (out := self._forward(group)) is not None]
        return there, torch.cat(logits) if len(logits) > 1 else next(iter(logits), None)

    def _piece(self, text: Text) -> _Piece:
        """Drop rows that are not the text's, and return those that it lacks."""
        rows = self._requests[text.name]
        known = np.array(rows.ran[text.settled : text.settled + len(text.tail)], np.int64)
        differs = np.flatnonzero(known != text.tail[: len(known)])
        same = int(differs[0]) if len(differs) else len(known)
        if text.masks is not None:
            same = min(same, len(text.tail) - 1)  # the last id must run for its logits
        kept = text.settled + max(same, 0)
        del rows.ran[kept:]
        rows.held = kept
        self._cache.cut(text.name, kept)
        missing = text.tail[max(same, 0) :]
        if text.masks is None or len(missing) > CATCH_UP_ROWS:
            return _Piece(text.name, missing[:CATCH_UP_ROWS], 0, 0)
        return _Piece(text.name, missing, text.masks, 1 + text.masks)

    def _forward(self, pieces: Sequence[_Piece]) -> Tensor | None:
        """Run rows of many requests at once; return the logits that are asked for."""
        held = [self._requests[piece.name].held for piece in pieces]
        counts = [len(piece.ids) + piece.masks for piece in pieces]
        step = self._cache.append([piece.name for piece in pieces], counts, [len(piece.ids) for piece in pieces])
        ids = [part for piece in pieces for part in (piece.ids, np.full(piece.masks, self._mask, np.int64))]
        positions = [np.arange(start, start + n) for start, n in zip(held, counts, strict=True)]
        ends = np.cumsum(counts)
        asked = [np.arange(end - piece.asked, end) for end, piece in zip(ends.tolist(), pieces, strict=True)]
        for piece, count in zip(pieces, counts, strict=True):
            rows = self._requests[piece.name]
            rows.ran.extend(piece.ids.tolist())
            rows.held += count
        wanted = np.concatenate(asked)
        return self._flat.run(
            torch.from_numpy(np.concatenate(ids)),
            torch.from_numpy(np.concatenate(positions)),
            step,
            self._cache.arena,
            torch.from_numpy(wanted) if len(wanted) else None,
        )

    def extend(self, names: Sequence[str], ids: Tensor) -> Tensor:
        """Run one drafted id of each request behind its rows, ids [a] int64; return logits [a, V_d]. See `note`."""
        entries = [self._requests[name] for name in names]
        positions = torch.tensor([entry.held for entry in entries])
        step = self._cache.append(names, [1] * len(names))
        for entry in entries:
            entry.held += 1
        logits = self._flat.run(ids, positions, step, self._cache.arena, torch.arange(len(names)))
        assert logits is not None  # rows are asked for
        return logits

    def note(self, name: str, ids: Sequence[int]) -> None:
        """Say which ids `extend` has run for a request since `take_in`, so that those that stand need not run again."""
        self._requests[name].ran.extend(ids)


def _groups(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Yield pieces in order, so many at a time as one forward may have."""
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        count = len(piece.ids) + piece.masks
        if group and size + count > FORWARD_ROWS:
            yield group
            group, size = [], 0
        group.append(piece)
        size += count
    if group:
        yield group
