"""Keys and values of a drafter: for each request the rows that stay, and behind them those of the current round.

It knows requests by name and counts rows; positions are the caller's, since a drafter may have gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_core.sources import TargetHandle
from specdec_nn.cache.arena import PAGE_SIZE, KVArena, Segment
from specdec_nn.ops.ancestor_bits.reference import WORD
from specdec_nn.ops.attention.reference import AttentionStep, query_step

PROMPT_ROWS = 32  # rows of a request from which on they may be run as a block


@dataclass(slots=True)
class _Rows:
    segment: Segment = field(default_factory=Segment)
    kept: int = 0  # rows of committed tokens
    held: int = 0  # those, and the rows of this round
    ancestors: list[int] = field(default_factory=list)  # bits of the rows of this round, if it grows a tree


class DraftCache:
    """A drafter's share of a paged arena."""

    def __init__(self, arena: KVArena) -> None:
        """Take an arena that nobody else uses; see `room` for its size."""
        self.arena = arena
        self._rows: dict[str, _Rows] = {}

    @classmethod
    def of(cls, target: TargetHandle, round_rows: int) -> DraftCache:
        """Return a cache beside a target's, with room for rounds of so many rows."""
        return cls(target.new_arena(cls.room(target.kv_cache_tokens, target.max_num_seqs, round_rows)))

    @staticmethod
    def room(kv_cache_tokens: int, max_num_seqs: int, round_rows: int) -> int:
        """Return the size of an arena that never runs full: the host's rows, and a round of drafts for each request."""
        return kv_cache_tokens + max_num_seqs * (round_rows + PAGE_SIZE)

    def open(self, name: str) -> None:
        """Begin a request, with nothing kept."""
        self.close(name)
        self._rows[name] = _Rows()

    def close(self, name: str) -> None:
        """Give a request's pages back; unknown names are ignored."""
        rows = self._rows.pop(name, None)
        if rows is not None:
            self.arena.release(rows.segment)

    def clear(self) -> None:
        """Give everything back."""
        for name in list(self._rows):
            self.close(name)

    def rewind(self, names: Sequence[str]) -> None:
        """Drop the rows of the last round."""
        for name in names:
            rows = self._rows[name]
            rows.held = rows.kept
            rows.ancestors.clear()

    def cut(self, name: str, rows: int) -> None:
        """Keep the first `rows` rows that a request holds, of whatever round, and drop the others."""
        entry = self._rows[name]
        if not 0 <= rows <= entry.held:
            message = f"{entry.held} rows are held, so {rows} cannot be kept"
            raise ValueError(message)
        entry.kept = entry.held = rows
        entry.ancestors.clear()

    def append(
        self,
        names: Sequence[str],
        counts: Sequence[int],
        keep: Sequence[int] | None = None,
        parents: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        grown: Tensor | None = None,
        mutual: bool = False,
    ) -> AttentionStep:
        """Return the attention tables of counts[i] >= 1 new rows of each request, of which the first keep[i] stay.

        Rows lie one request after the other; each sees all rows of its request that are held, and those before it.
        Rows that stay come first in a round; `keep` None keeps none of the new ones. With `parents`, one for each new
        row, rows see the kept ones and their ancestors only: a parent is the number of an earlier row of this round, -1
        for the last kept one. A round has either such rows or others behind the kept ones. In place of parents, `grown`
        has the bits of these rows, [rows, words] int64 on the arena's device, for trees whose form the host does not
        know: bit n is the n-th row of this round, whose other rows must have been given in the same way. With `mutual`,
        the new rows of a request see each other in both directions. Rows that nothing is asked of need no attention:
        `write_pages` puts their keys and values where the tables point.
        Raises MemoryError if the arena is full.
        """
        entries = [self._rows[name] for name in names]
        for entry, count in zip(entries, counts, strict=True):
            if not self.arena.reserve(entry.segment, entry.held + count):
                message = f"the drafter's KV arena of {self.arena.num_tokens} rows is full"
                raise MemoryError(message)
        counted = np.asarray(counts, np.int32)
        context = np.array([entry.held for entry in entries], np.int32)
        starts = np.cumsum(counted, dtype=np.int32) - counted
        stays = [0] * len(entries) if keep is None else keep
        kept = np.array([entry.kept + n for entry, n in zip(entries, stays, strict=True)], np.int32)
        trees = parents is not None or grown is not None
        step = AttentionStep(
            slots=np.concatenate(
                [self.arena.slots(e.segment, e.held, n) for e, n in zip(entries, counted.tolist(), strict=True)]
            ),
            seg_start=starts,
            seg_rows=counted,
            seg_context=context,
            seg_prompt=counted >= PROMPT_ROWS,
            page_table=self._table(entries),
            page_size=self.arena.page_size,
            seg_tree=np.array([entry.kept for entry in entries], np.int32) if trees else None,
            ancestors=None if parents is None else _ancestors(entries, counted.tolist(), parents),
            seg_mutual=np.ones(len(entries), np.bool_) if mutual else None,
            states=self.arena.state_step([e.segment for e in entries], starts, counted, context, kept.astype(np.int32)),
        )
        if grown is not None:
            there = grown.device.type != "cpu"
            step.ancestors = np.zeros(tuple(grown.shape), np.int64) if there else grown.numpy()
            step.grown = grown if there else None
        for entry, count, n in zip(entries, counted.tolist(), stays, strict=True):
            entry.kept += n
            entry.held += count
        return step

    def query_step(self, names: Sequence[str]) -> AttentionStep:
        """Return the tables of one query row a request, which sees all rows that are held, and writes none."""
        entries = [self._rows[name] for name in names]
        return query_step(self._table(entries), np.array([e.held for e in entries], np.int32), self.arena.page_size)

    def _table(self, entries: Sequence[_Rows]) -> IntArray:
        width = max(len(entry.segment.pages) for entry in entries)
        table = np.zeros((len(entries), width), np.int32)
        for row, entry in enumerate(entries):
            table[row, : len(entry.segment.pages)] = entry.segment.pages
        return table

    def memory_bytes(self) -> int:
        """Return the bytes of the arena's layers."""
        return self.arena.memory_bytes()


def _ancestors(
    entries: Sequence[_Rows], counts: Sequence[int], parents: Sequence[int] | npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the bits of new rows, [sum(counts), words] int64: themselves and their ancestors in this round."""
    rows: list[int] = []
    flat = iter(int(parent) for parent in parents)
    for entry, count in zip(entries, counts, strict=True):
        for _ in range(count):
            parent = next(flat)
            above = 0 if parent < 0 else entry.ancestors[parent]
            entry.ancestors.append(above | 1 << len(entry.ancestors))
        rows.extend(entry.ancestors[-count:])
    words = max(len(entry.ancestors) for entry in entries) // WORD + 1
    raw = b"".join(bits.to_bytes(words * 8, "little") for bits in rows)
    return np.frombuffer(raw, "<i8").reshape(len(rows), words).astype(np.int64)
