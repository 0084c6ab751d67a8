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
from specdec_nn.ops.attention.call import Task
from specdec_nn.ops.cpu import softmax as softmax_simd
from specdec_nn.ops.cpu.elements import clear, copy_bytes, widen
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.records import integers

KEYS: Final = softmax_simd.KEYS
BLOCK: Final = ops.BLOCK
FACTORS: Final = BLOCK * KEYS  # where a block's factors stand behind its scores, in floats
ONES: Final = FACTORS + BLOCK  # and factors of one
SCORES: Final = FACTORS + 16  # floats of a block of scores with its factors


@njit(nogil=True, error_model="numpy")
def load(call: Any, task: Task, first: int, end: int, values: int) -> None:
    """Load keys first .. end - 1 of one tile: the task's keys [dims, KEYS] and values [KEYS, columns], float32."""
    one, columns, width = np.float32(1.0), call.columns, call.width
    low = first % KEYS
    page, offset = first // call.page_size, first % call.page_size
    table, pointers = integers(task.page_table, call.table_width), integers(task.pointers, KEYS)
    n, past = low, low + end - first
    while n < past:
        run = min(past - n, call.page_size - offset)
        k = call.k_pages + table[page] * call.k_page + task.head * call.k_page_head + offset * call.k_key
        v = call.v_pages + table[page] * call.v_page + task.head * call.v_page_head + offset * call.v_key
        for m in range(run):
            pointers[n + m] = k + m * call.k_key
        if columns == width and call.v_key == width * call.size:
            widen(call.kind, v, values + n * columns * 4, run * width, one)
        else:
            for m in range(run):
                widen(call.kind, v + m * call.v_key, values + (n + m) * columns * 4, width, one)
        n, page, offset = n + run, page + 1, 0
    # Keys are loaded by sixteens; lanes outside get a key that may be read, and are masked later.
    pointers[low // 16 * 16 : low] = pointers[low]
    pointers[past : (past + 15) // 16 * 16] = pointers[low]
    for part in range(low // 16, (past + 15) // 16):
        ops.load_keys(call.kind, task.pointers + part * 128, task.keys + part * 64, call.dims)


@njit(nogil=True, error_model="numpy")
def take(call: Any, task: Task, origin: int) -> None:
    """Take the tile loaded, whose first key is at position `origin`, into the records of all that see it."""
    group, columns, window = call.group, call.columns, call.window
    positions, ends = integers(task.positions, task.rows), integers(task.ends, task.rows)
    scores, factors = task.scores, task.scores + FACTORS * 4
    # Whole rows where they fit: the heads of one row see the same keys.
    block = BLOCK // group * group if group <= BLOCK else BLOCK
    for at in range(0, task.rows * group, block):
        count = min(block, task.rows * group - at)
        low, high = positions[at // group], ends[at // group] - 1
        for r in range(at // group + 1, (at + count - 1) // group + 1):
            low, high = min(low, positions[r]), max(high, ends[r] - 1)
        if high < origin or low - window + 1 >= origin + KEYS:
            continue
        ops.score(count, task.queries + at * call.dims * 4, call.dims, task.keys, scores)
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
                    soften(call, task, at + n, n, seen, past)
                ops.mix(run, scores + m * KEYS * 4 + seen * 4, factors + m * 4, task.values + seen * columns * 4,
                        columns, past - seen, task.states + (at + m) * call.record, call.record)  # fmt: skip
            m += run


@njit(nogil=True, error_model="numpy")
def soften(call: Any, task: Task, row: int, place: int, seen: int, past: int) -> None:
    """Turn a row's scores, at a place of the block, into weights of keys seen .. past - 1; `row` counts heads."""
    scores = task.scores + place * KEYS * 4
    if call.softcap > 0.0:
        softmax_simd.cap(scores, call.softcap)
    factor = task.scores + (FACTORS + place) * 4
    softmax_simd.soften(scores, task.states + row * call.record, call.columns, factor, seen, past)


@njit(nogil=True, error_model="numpy")
def score_tree(call: Any, task: Task, first: int) -> None:
    """Load keys from `first` and from the tile in which a tree begins on, and score all rows and heads with them.

    Fills the task's tree_values and tree_scores, both in the order of the keys.
    """
    columns, tree, past = call.columns, task.tree, task.past
    count = task.rows * call.group
    for tile in range(tree // KEYS, (past + KEYS - 1) // KEYS):
        place = tile - tree // KEYS
        own = task.tree_values + place * KEYS * columns * 4
        if columns > call.width:
            clear(own, KEYS * columns * 4)
        load(call, task, max(tile * KEYS, first), min((tile + 1) * KEYS, past), own)
        for at in range(0, count, BLOCK):
            some = min(BLOCK, count - at)
            if past - task.rows + (at + some - 1) // call.group >= tile * KEYS:
                ops.score(some, task.queries + at * call.dims * 4, call.dims, task.keys,
                          task.tree_scores + (place * count + at) * KEYS * 4)  # fmt: skip


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
def take_branches(call: Any, task: Task, origin: int) -> None:
    """Take a tile of positions, at or after the one in which a tree begins, into the records of all rows and heads."""
    group, columns = call.group, call.columns
    positions, paths = integers(task.positions, task.rows), integers(call.paths, call.rows + 1)
    for r in range(task.rows):
        seen = max(positions[r] - call.window + 1 - origin, 0)
        past = min(positions[r] + 1 - origin, KEYS)
        if seen >= past:
            continue
        begin = paths[task.start + r]
        path = integers(call.paths + begin * 8, paths[task.start + r + 1] - begin)
        for at in range(r * group, (r + 1) * group, BLOCK):
            heads = min(BLOCK, (r + 1) * group - at)
            _in_order(task, path, at, heads, task.rows * group, origin, seen, past)
            for m in range(heads):
                soften(call, task, at + m, m, seen, past)
            # A sum that is interrupted goes on from where it was, with a factor of one, and rounds no differently.
            lane, factors = seen, task.scores + FACTORS * 4
            while lane < past:
                key, run = _stretch(origin + lane, origin + past, task.tree, path)
                source = task.tree_values + (key - task.tree // KEYS * KEYS) * columns * 4
                ops.mix(heads, task.scores + lane * 4, factors, source, columns, run,
                        task.states + at * call.record, call.record)  # fmt: skip
                lane, factors = lane + run, task.scores + ONES * 4


@njit(nogil=True, error_model="numpy")
def _in_order(task: Task, path: Any, at: int, heads: int, count: int, origin: int, seen: int, past: int) -> None:
    """Copy scores of a row's heads, `at` and after it of `count`, from the order of keys to that of positions."""
    base, lane = task.tree // KEYS * KEYS, seen
    while lane < past:
        key, run = _stretch(origin + lane, origin + past, task.tree, path)
        source = task.tree_scores + (((key - base) // KEYS * count + at) * KEYS + key % KEYS) * 4
        for m in range(heads):
            copy_bytes(source + m * KEYS * 4, task.scores + (m * KEYS + lane) * 4, run * 4)
        lane += run
