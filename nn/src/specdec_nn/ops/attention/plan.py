"""How the numba attention cuts a step into tasks: plain numpy, made once a step and window, no kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from specdec_nn.ops.ancestor_bits.reference import ancestor_lists
from specdec_nn.ops.attention.call import ITEM, MERGE
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_nn.ops.cpu.records import address_of
from specdec_nn.ops.cpu.softmax import KEYS

CHUNK: Final = 4 * KEYS  # keys a task where tasks are few: a long context then spreads over the cores
ROWS: Final = 64  # rows a task: shares one conversion of keys and values, and bounds the scratch
UNBOUNDED: Final = 1 << 62  # a window that hides nothing


@dataclass(slots=True, eq=False)
class Plan:
    """The kernel's tables of one step and window.

    slots, page_table  of the step, in int64
    paths      [N + 1 + sum of path lengths] where each row's path begins in this array, then the paths: the keys of its
               own tree that a row sees, in order. [0] if there are no trees
    positions  [N] of the rows, and `ends` [N] the positions past the last that they see
    items      [n] records: segment, first flat row, rows, lowest position, highest position that a row sees, key after
               the last row's, or in a mutual segment after the last one of all, first key of the tree or -1, first
               chunk, chunk past the last, rows of partial results before this one's, or -1 where the item has all
               chunks of its rows, and 1 in a mutual segment
    merges     [rows] records: flat row, row of its item, rows of its item, rows of partial results before its first,
               chunks
    blank      flat rows of no segment
    partials   rows of partial results
    longest    most rows of an item
    tiles      most tiles of keys that the tree of an item spreads over
    work       (row, key) pairs
    page_size  keys a page
    """

    slots: npt.NDArray[np.int64]
    page_table: npt.NDArray[np.int64]
    paths: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    items: npt.NDArray[Any]
    merges: npt.NDArray[Any]
    blank: npt.NDArray[np.int64]
    partials: int
    longest: int
    tiles: int
    work: int
    page_size: int
    numbers: tuple[int, ...] = field(init=False)  # the fields of CALL from `page_size` to `work`

    def __post_init__(self) -> None:
        """Take sizes and addresses once for all layers."""
        tables = self.slots, self.page_table, self.paths, self.positions, self.ends, self.items, self.merges, self.blank
        counts = len(self.items), len(self.merges), len(self.blank), self.partials, self.longest, self.tiles, self.work
        sizes = self.page_size, len(self.slots), self.page_table.shape[1]
        self.numbers = (*sizes, *(address_of(table) for table in tables), *counts)


@dataclass(slots=True)
class _Block:
    """Up to ROWS rows of a segment: flat rows start .. start + rows - 1, see the columns of `Plan.items`."""

    segment: int
    start: int
    rows: int
    low: int
    high: int
    past: int
    tree: int
    positions: list[int] | range
    mutual: bool = False

    def last(self, position: int, window: int) -> int:
        """Return the last position that a row at a position sees."""
        return min(position + window, self.past) - 1 if self.mutual else position


def _paths(step: AttentionStep) -> npt.NDArray[np.int64]:
    """Return `Plan.paths`."""
    if step.ancestors is None or step.seg_tree is None:
        return np.zeros(1, np.int64)
    ends, bits = ancestor_lists(step.bits())
    tree = np.zeros(len(step.slots), np.int64)
    for start, rows, first in zip(step.seg_start, step.seg_rows, step.seg_tree, strict=True):
        tree[start : start + rows] = first
    return np.concatenate((ends + len(ends), bits + np.repeat(tree, np.diff(ends))))


def _blocks(step: AttentionStep, paths: npt.NDArray[np.int64]) -> list[_Block]:
    segments = len(step.seg_start)
    trees = [-1] * segments if step.seg_tree is None else step.seg_tree.tolist()
    mutual = [False] * segments if step.seg_mutual is None else step.seg_mutual.tolist()
    columns = zip(
        step.seg_start.tolist(), step.seg_rows.tolist(), step.seg_context.tolist(), trees, mutual, strict=True
    )
    blocks = []
    for s, (start, rows, context, tree, both_ways) in enumerate(columns):
        for r in range(0, rows, ROWS):
            first, count = start + r, min(ROWS, rows - r)
            past = context + r + count
            if tree < 0:
                positions, seen = range(past - count, past), context + rows if both_ways else past
                blocks.append(_Block(s, first, count, past - count, past - 1, seen, tree, positions, both_ways))
                continue
            positions = (tree - 1 + np.diff(paths[first : first + count + 1])).tolist()
            blocks.append(_Block(s, first, count, min(positions), max(positions), past, tree, positions))
    return blocks


def plan(step: AttentionStep, window: int, kv_heads: int, threads: int) -> Plan:
    """Return the tables of a step, made once for all its layers of one window; `threads` share the work."""
    paths = _paths(step)
    blocks = _blocks(step, paths)
    split = len(blocks) * kv_heads < 4 * threads
    items: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    partials = work = tiles = 0
    covered = np.zeros(len(step.slots), np.bool_)
    positions, ends = (np.zeros(len(step.slots), np.int64) for _ in range(2))
    for b in blocks:
        own = slice(b.start, b.start + b.rows)
        covered[own], positions[own] = True, b.positions
        ends[own] = np.minimum(positions[own] + window, b.past) if b.mutual else positions[own] + 1
        high = b.last(b.high, window)
        work += b.rows * min(high + 1, window)
        if b.tree >= 0:
            tiles = max(tiles, (b.past - 1) // KEYS + 1 - b.tree // KEYS)
        begin, end = max(0, b.low + 1 - window) // CHUNK, high // CHUNK + 1
        head, mutual = (b.segment, b.start, b.rows, b.low, high, b.past, b.tree), int(b.mutual)
        if not split or end - begin == 1:
            items.append((*head, begin, end, -1, mutual))
            continue
        for r, position in enumerate(b.positions):
            first = max(0, position + 1 - window) // CHUNK
            chunks = b.last(position, window) // CHUNK + 1 - first
            merges.append((b.start + r, r, b.rows, partials + (first - begin) * b.rows, chunks))
        for chunk in range(begin, end):
            items.append((*head, chunk, chunk + 1, partials, mutual))
            partials += b.rows
    # Each core gets a stretch of the tasks. Dealing the items out evens the stretches: later blocks see more keys.
    dealt = [item for core in range(threads) for item in items[core::threads]]
    return Plan(
        slots=step.slots.astype(np.int64),
        page_table=step.page_table.astype(np.int64),
        paths=paths,
        positions=positions,
        ends=ends,
        items=np.array(dealt, ITEM),
        merges=np.array(merges, MERGE),
        blank=np.flatnonzero(~covered),
        partials=partials,
        longest=max((b.rows for b in blocks), default=0),
        tiles=tiles,
        work=work,
        page_size=step.page_size,
    )
