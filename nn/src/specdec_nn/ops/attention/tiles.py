"""Tiles of the numba attention: KEYS keys of one kv head, taken into the records of the rows that see them.

A tile is cut at fixed positions. Before a tree begins, all its rows share a tile of keys; from there on the positions
of each row hold keys of its own. Their scores are the same numbers wherever the keys stand, so they are computed as the
keys lie and then put in order of position, and everything that depends on order works on the latter.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np

from specdec_nn.ops.attention import simd as ops
from specdec_nn.ops.cpu import softmax as softmax_simd
from specdec_nn.ops.cpu.jit import njit

KEYS: Final = softmax_simd.KEYS
BLOCK: Final = ops.BLOCK
FACTORS: Final = BLOCK * KEYS  # where a block's factors stand behind its scores, in floats
ONES: Final = FACTORS + BLOCK  # and factors of one
SCORES: Final = FACTORS + 16  # floats of a block of scores with its factors

Pages = tuple[int, int, int, int]  # address, bytes from page to page, from head to head, from key to key


@njit(nogil=True, error_model="numpy")
def load(
    kind: int, size: int, table: Any, page_size: int, first: int, end: int, head: int, k_pages: Pages, v_pages: Pages,
    dims: int, width: int, columns: int, pointers: Any, keys: int, values: int,
) -> None:  # fmt: skip
    """Load keys first .. end - 1 of one tile: keys [dims, KEYS] and values [KEYS, columns], float32."""
    one = np.float32(1.0)
    low = first % KEYS
    page, offset = first // page_size, first % page_size
    n, past = low, low + end - first
    while n < past:
        run = min(past - n, page_size - offset)
        k = k_pages[0] + table[page] * k_pages[1] + head * k_pages[2] + offset * k_pages[3]
        v = v_pages[0] + table[page] * v_pages[1] + head * v_pages[2] + offset * v_pages[3]
        for m in range(run):
            pointers[n + m] = k + m * k_pages[3]
        if columns == width and v_pages[3] == width * size:
            ops.widen(kind, v, values + n * columns * 4, run * width, one)
        else:
            for m in range(run):
                ops.widen(kind, v + m * v_pages[3], values + (n + m) * columns * 4, width, one)
        n, page, offset = n + run, page + 1, 0
    # Keys are loaded by sixteens; lanes outside get a key that may be read, and are masked later.
    pointers[low // 16 * 16 : low] = pointers[low]
    pointers[past : (past + 15) // 16 * 16] = pointers[low]
    for part in range(low // 16, (past + 15) // 16):
        ops.load_keys(kind, pointers.ctypes.data + part * 128, keys + part * 64, dims)


@njit(nogil=True, error_model="numpy")
def take(
    origin: int, positions: Any, ends: Any, window: int, group: int, dims: int, columns: int, softcap: float,
    queries: int, keys: int, values: int, scores: int, states: int,
) -> None:  # fmt: skip
    """Take one tile, whose first key is at position `origin`, into the records of all rows and heads that see it.

    `ends` are the positions past the last that the rows see.
    """
    record = (columns + softmax_simd.RECORD) * 4
    factors = scores + FACTORS * 4
    # Whole rows where they fit: the heads of one row see the same keys.
    block = BLOCK // group * group if group <= BLOCK else BLOCK
    for at in range(0, len(positions) * group, block):
        count = min(block, len(positions) * group - at)
        low, high = positions[at // group], ends[at // group] - 1
        for r in range(at // group + 1, (at + count - 1) // group + 1):
            low, high = min(low, positions[r]), max(high, ends[r] - 1)
        if high < origin or low - window + 1 >= origin + KEYS:
            continue
        ops.score(count, queries + at * dims * 4, dims, keys, scores)
        m = 0
        while m < count:
            r = (at + m) // group
            seen = max(positions[r] - window + 1 - origin, 0)
            past = min(ends[r] - origin, KEYS)
            # Rows that see the whole tile go together, others with the heads of their own row.
            run = min(count - m, (r + 1) * group - at - m)
            if seen == 0 and past == KEYS and high - window + 1 <= origin:
                run = count - m
            if seen < past:
                for n in range(m, m + run):
                    if softcap > 0.0:
                        softmax_simd.cap(scores + n * KEYS * 4, np.float32(softcap))
                    row, state = scores + n * KEYS * 4, states + (at + n) * record
                    softmax_simd.soften(row, state, columns, factors + n * 4, seen, past)
                ops.mix(run, scores + m * KEYS * 4 + seen * 4, factors + m * 4, values + seen * columns * 4, columns,
                        past - seen, states + (at + m) * record, record)  # fmt: skip
            m += run


@njit(nogil=True, error_model="numpy")
def score_tree(
    kind: int, size: int, table: Any, page_size: int, first: int, past: int, tree: int, rows: int, group: int,
    head: int, k_pages: Pages, v_pages: Pages, dims: int, width: int, columns: int, pointers: Any, queries: int,
    keys: int, values: int, scores: int,
) -> None:  # fmt: skip
    """Load keys first .. past - 1, from the tile in which a tree begins on, and score all rows and heads with them.

    Fills values [tiles * KEYS, columns] and scores [tiles, rows * group, KEYS], both in the order of the keys.
    """
    count = rows * group
    for tile in range(tree // KEYS, (past + KEYS - 1) // KEYS):
        place = tile - tree // KEYS
        own = values + place * KEYS * columns * 4
        if columns > width:
            ops.clear(own, KEYS * columns * 4)
        load(kind, size, table, page_size, max(tile * KEYS, first), min((tile + 1) * KEYS, past), head, k_pages,
             v_pages, dims, width, columns, pointers, keys, own)  # fmt: skip
        for at in range(0, count, BLOCK):
            some = min(BLOCK, count - at)
            if past - rows + (at + some - 1) // group >= tile * KEYS:
                ops.score(some, queries + at * dims * 4, dims, keys, scores + (place * count + at) * KEYS * 4)


@njit(nogil=True, error_model="numpy")
def _stretch(position: int, end: int, tree: int, path: Any) -> tuple[int, int]:
    """Return the key at a position of a path, and how many positions on, below `end`, the keys go on in one tile."""
    key, run = position, tree - position
    if position >= tree:
        key, run = path[position - tree], 1
    left = min(end - position, KEYS - key % KEYS)
    while run < left and path[position + run - tree] == key + run:
        run += 1
    return key, min(run, left)


@njit(nogil=True, error_model="numpy")
def take_branches(
    origin: int, positions: Any, start: int, paths: Any, tree: int, window: int, group: int, columns: int,
    softcap: float, tree_values: int, tree_scores: int, scores: int, states: int,
) -> None:  # fmt: skip
    """Take a tile of positions, at or after the one in which a tree begins, into the records of all rows and heads."""
    record = (columns + softmax_simd.RECORD) * 4
    factors = scores + FACTORS * 4
    count, base = len(positions) * group, tree // KEYS * KEYS
    for r in range(len(positions)):
        seen = max(positions[r] - window + 1 - origin, 0)
        past = min(positions[r] + 1 - origin, KEYS)
        if seen >= past:
            continue
        path = paths[paths[start + r] : paths[start + r + 1]]
        for at in range(r * group, (r + 1) * group, BLOCK):
            heads = min(BLOCK, (r + 1) * group - at)
            lane = seen
            while lane < past:
                key, run = _stretch(origin + lane, origin + past, tree, path)
                source = tree_scores + (((key - base) // KEYS * count + at) * KEYS + key % KEYS) * 4
                for m in range(heads):
                    ops.copy_bytes(source + m * KEYS * 4, scores + (m * KEYS + lane) * 4, run * 4)
                lane += run
            for m in range(heads):
                if softcap > 0.0:
                    softmax_simd.cap(scores + m * KEYS * 4, np.float32(softcap))
                softmax_simd.soften(scores + m * KEYS * 4, states + (at + m) * record, columns, factors + m * 4,
                                    seen, past)  # fmt: skip
            # A sum that is interrupted goes on from where it was, with a factor of one, and rounds no differently.
            lane, scale = seen, factors
            while lane < past:
                key, run = _stretch(origin + lane, origin + past, tree, path)
                ops.mix(heads, scores + lane * 4, scale, tree_values + (key - base) * columns * 4, columns, run,
                        states + at * record, record)  # fmt: skip
                lane, scale = lane + run, scores + ONES * 4
