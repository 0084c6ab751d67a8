"""From scheduled rows to forwards: which of them run together, padded to a fixed width where one is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specdec_engine.requests.rope_lengths import RopeLengths
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_nn.cache.arena import KVArena
from specdec_nn.ops.ancestor_bits.reference import words_of
from specdec_nn.ops.attention.reference import AttentionStep


@dataclass(slots=True)
class Piece:
    """Rows `offset` .. `offset + count - 1` of the step's `index`-th item, which run in one forward."""

    item: ScheduledRows
    index: int
    offset: int
    count: int


@dataclass(slots=True)
class FlatBatch:
    """One forward over N flat rows.

    ids, positions  [N] int64 (padding rows: id 0, position 0); nodes of a tree stand at equal positions
    step            attention tables
    logits_rows     [R] int64 flat rows whose logits are wanted, in order of items
    pieces          what the rows are
    lengths         [N] int64 the length of text that each row is turned for (0: padding), None where none is needed
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    step: AttentionStep
    logits_rows: npt.NDArray[np.int64]
    pieces: list[Piece]
    lengths: npt.NDArray[np.int64] | None = None


def split(items: Sequence[ScheduledRows], decode_width: int | None, chunk: int) -> Iterator[tuple[list[Piece], int]]:
    """Yield (pieces, width) of each forward; width 0 = as many rows as there are.

    With a decode width W, decode rows run in forwards of exactly W rows, and prompt chunks apart in forwards of exactly
    `chunk` rows, so that no product of the model ever sees another shape.
    """
    if decode_width is None:
        yield [Piece(item, index, 0, len(item.ids)) for index, item in enumerate(items)], 0
        return
    for index, item in enumerate(items):
        if item.prompt:
            yield [Piece(item, index, 0, len(item.ids))], chunk
    pieces: list[Piece] = []
    room = decode_width
    for index, item in enumerate(items):
        offset = 0 if not item.prompt else len(item.ids)
        while offset < len(item.ids):
            count = min(room, len(item.ids) - offset)
            pieces.append(Piece(item, index, offset, count))
            offset += count
            room -= count
            if room == 0:
                yield pieces, decode_width
                pieces, room = [], decode_width
    if pieces:
        yield pieces, decode_width


def build(pieces: list[Piece], width: int, arena: KVArena, rope: RopeLengths | None = None) -> FlatBatch:
    """Lay the pieces out in sequence and pad to `width`; their pages must have been reserved."""
    used = sum(piece.count for piece in pieces)
    size = max(used, width)
    ids = np.zeros(size, np.int64)
    positions = np.zeros(size, np.int64)
    slots = np.full(size, -1, np.int32)
    n = len(pieces)
    widest = [_words(piece.item) for piece in pieces]
    ancestors = np.zeros((size, max(widest)), np.int64) if any(widest) else None
    seg_start, seg_rows, seg_context, certain = (np.zeros(n, np.int32) for _ in range(4))
    seg_prompt = np.zeros(n, np.bool_)
    seg_tree = np.full(n, -1, np.int32)
    table = np.zeros((n, max(len(piece.item.request.segment.pages) for piece in pieces)), np.int32)
    logits_rows: list[npt.NDArray[np.int64]] = []
    row = 0
    for i, piece in enumerate(pieces):
        item, count = piece.item, piece.count
        start = item.start + piece.offset
        segment = item.request.segment
        ids[row : row + count] = item.ids[piece.offset : piece.offset + count]
        positions[row : row + count] = item.positions[piece.offset : piece.offset + count]
        if ancestors is not None and item.ancestors is not None:
            ancestors[row : row + count, : widest[i]] = item.ancestors[piece.offset : piece.offset + count]
        if widest[i]:
            seg_tree[i] = item.start
        slots[row : row + count] = arena.slots(segment, start, count)
        seg_start[i], seg_rows[i], seg_context[i], seg_prompt[i] = row, count, start, item.prompt
        certain[i] = item.start + len(item.ids) - item.num_draft
        table[i, : len(segment.pages)] = segment.pages
        first_wanted = max(len(item.ids) - item.wants - piece.offset, 0)
        logits_rows.append(np.arange(row + min(first_wanted, count), row + count, dtype=np.int64))
        row += count
    step = AttentionStep(
        slots=slots,
        seg_start=seg_start,
        seg_rows=seg_rows,
        seg_context=seg_context,
        seg_prompt=seg_prompt,
        page_table=table,
        page_size=arena.page_size,
        seg_tree=None if ancestors is None else seg_tree,
        ancestors=ancestors,
        states=arena.state_step([p.item.request.segment for p in pieces], seg_start, seg_rows, seg_context, certain),
        fixed_width=width > 0,
    )
    batch = FlatBatch(ids, positions, step, np.concatenate(logits_rows), pieces)
    if rope is not None:
        parts = [rope.of_rows(piece.item)[piece.offset : piece.offset + piece.count] for piece in pieces]
        batch.lengths = np.concatenate([*parts, np.zeros(size - used, np.int64)])
    return batch


def _words(item: ScheduledRows) -> int:
    """Return how many words of ancestor bits the rows of an item need, 0 for a chain."""
    if item.ancestors is not None:
        return int(item.ancestors.shape[1])
    return words_of([item.num_draft]) if item.deepest >= 0 and item.num_draft else 0


def places_of_trees(pieces: Sequence[Piece]) -> list[npt.NDArray[np.int64]]:
    """Return the flat rows of trees whose form is on a device, which of the rows of `DeviceDrafts` they are, `deepest`.

    Each is [T]; decode rows are the first items of a step.
    """
    found = [np.empty((3, 0), np.int64)]
    row = 0
    for piece in pieces:
        item, own = piece.item, np.arange(piece.count)
        if item.deepest >= 0 and item.num_draft:
            first = item.first_draft + piece.index + piece.offset
            found.append(np.stack([row + own, first + own, np.full(piece.count, item.deepest)]))
        row += piece.count
    return list(np.concatenate(found, axis=1))


def places_of_drafts(pieces: Sequence[Piece]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the flat rows of drafts whose ids are on a device, and which drafts of the step they are, [D] each."""
    rows: list[int] = []
    drafts: list[int] = []
    row = 0
    for piece in pieces:
        item = piece.item
        known = len(item.ids) - item.num_draft
        if item.first_draft >= 0:
            first = max(known - piece.offset, 0)
            rows.extend(range(row + first, row + piece.count))
            start = item.first_draft + piece.offset + first - known
            drafts.extend(range(start, start + max(piece.count - first, 0)))
        row += piece.count
    return np.array(rows, np.int64), np.array(drafts, np.int64)
