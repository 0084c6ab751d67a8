"""The attention op on a CPU: one compiled kernel over pages for decode rows and prompt chunks alike.

A row's result is a function of its own query and its own keys. Keys are cut at fixed positions: tiles of KEYS, within
chunks of CHUNK counted from key 0. A row goes through the tiles that it sees in order, each lane of the arithmetic its
own, and the chunks that it sees are joined in order. Its neighbours share the converted tiles with it, and nothing
else; how the work is cut into tasks does not show either. A row of a tree goes through its keys in order of position,
and so gives the bits of a row of a chain with the same keys.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import config, get_thread_id, prange
from torch import Tensor

from specdec_nn.ops.attention import simd as ops
from specdec_nn.ops.attention import tiles as tiles
from specdec_nn.ops.attention.plan import CHUNK, UNBOUNDED, Plan, plan
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference
from specdec_nn.ops.attention.tiles import BLOCK, KEYS, SCORES, Pages
from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu import softmax as softmax_simd
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.turns import one_at_a_time

SMALL: Final = 1024  # (row, key) pairs of all heads below which waking the other cores costs more than it saves

_KINDS: Final = {getattr(torch, name): index for index, name in enumerate(ops.KINDS)}
_LOG2E: Final = softmax_simd.LOG2E
_THREADS: Final = int(config.NUMBA_NUM_THREADS)  # an argument of the kernel: cached code must not depend on it

Place = tuple[int, int, int]  # address, bytes from row to row, bytes from head to head


@njit(nogil=True, error_model="numpy")
def _write(slots: Any, page_size: int, source: Place, pages: Pages, heads: int, count: int) -> None:
    """Copy `count` bytes a row and head into the rows' slots; slot -1 writes nothing."""
    for row in range(len(slots)):
        if slots[row] >= 0:
            page = slots[row] // page_size
            place = pages[0] + page * pages[1] + (slots[row] - page * page_size) * pages[3]
            for h in range(heads):
                ops.copy_bytes(source[0] + row * source[1] + h * source[2], place + h * pages[2], count)


@njit(nogil=True, error_model="numpy")
def _task(
    kind: int, size: int, item: Any, table: Any, page_size: int, head: int, q: Place, k_pages: Pages, v_pages: Pages,
    out: int, heads: int, group: int, dims: int, width: int, columns: int, window: int, scale: float, softcap: float,
    sinks: int, positions: Any, ends: Any, paths: Any, scratch: int, partials: int, tree_tiles: int,
) -> None:  # fmt: skip
    """Run some rows of a segment, and the heads of one kv head, over some chunks.

    All chunks of the rows (item[9] < 0): write the output. Else, a single chunk: leave the records in `partials`.
    """
    start, rows, low, high, past, tree, whole = item[1], item[2], item[3], item[4], item[5], item[6], item[9] < 0
    count, record = rows * group, (columns + softmax_simd.RECORD) * 4
    positions, ends = positions[start : start + rows], ends[start : start + rows]
    pointers = np.empty(KEYS, np.int64)
    keys = scratch
    values = keys + KEYS * dims * 4
    scores = values + KEYS * columns * 4
    running = scores + SCORES * 4
    states = running + count * record if whole else partials + (item[9] * heads + head * count) * record
    tree_values = running + 2 * count * record
    tree_scores = tree_values + tree_tiles * KEYS * columns * 4
    queries = tree_scores + tree_tiles * count * KEYS * 4
    ops.clear(scratch, scores - scratch)  # columns past the width and lanes past the keys are multiplied, if by nothing
    for n in range(count):
        source = q[0] + (start + n // group) * q[1] + (head * group + n % group) * q[2]
        ops.widen(kind, source, queries + n * dims * 4, dims, np.float32(scale))
        softmax_simd.begin(running + n * record, columns)
    shared = tree // KEYS if tree >= 0 else CHUNK * item[8]  # tiles before this one are the same for all rows
    if shared * KEYS < CHUNK * item[8]:
        # With a window, keys before the first that is seen may be somebody else's by now.
        first = max(shared * KEYS, min(low - window + 1, tree))
        tiles.score_tree(kind, size, table, page_size, first, past, tree, rows, group, head, k_pages, v_pages, dims,
                         width, columns, pointers, queries, keys, tree_values, tree_scores)  # fmt: skip
        ops.fill(scores + tiles.ONES * 4, BLOCK, np.float32(1.0))
    for chunk in range(item[7], item[8]):
        for n in range(count):
            softmax_simd.begin(states + n * record, columns)
        begin = max(chunk * CHUNK, low - window + 1)
        end = min((chunk + 1) * CHUNK, high + 1)
        for tile in range(begin // KEYS, (end + KEYS - 1) // KEYS):
            origin = tile * KEYS
            if tile < shared:
                tiles.load(kind, size, table, page_size, max(origin, begin), min(origin + KEYS, end), head, k_pages,
                           v_pages, dims, width, columns, pointers, keys, values)  # fmt: skip
                tiles.take(origin, positions, ends, window, group, dims, columns, softcap, queries, keys, values,
                           scores, states)  # fmt: skip
            else:
                tiles.take_branches(origin, positions, start, paths, tree, window, group, columns, softcap,
                                    tree_values, tree_scores, scores, states)  # fmt: skip
        if whole:
            for n in range(count):
                softmax_simd.join(running + n * record, states + n * record, columns)
    if whole:
        for n in range(count):
            h = head * group + n % group
            softmax_simd.finish(running + n * record, columns, sinks + h * 4 if sinks != 0 else 0)
            ops.narrow(kind, running + n * record, out + ((start + n // group) * heads + h) * width * size, width)


@njit(nogil=True, error_model="numpy")
def _merge(
    kind: int,
    size: int,
    row: Any,
    heads: int,
    group: int,
    width: int,
    columns: int,
    out: int,
    sinks: int,
    partials: int,
) -> None:
    """Join the chunks of one row in order and write it."""
    flat, r, rows, base, chunks = row[0], row[1], row[2], row[3], row[4]
    record = (columns + softmax_simd.RECORD) * 4
    for h in range(heads):
        state = partials + (base * heads + (h // group * rows + r) * group + h % group) * record
        for c in range(1, chunks):
            softmax_simd.join(state, state + c * rows * heads * record, columns)
        softmax_simd.finish(state, columns, sinks + h * 4 if sinks != 0 else 0)
        ops.narrow(kind, state, out + (flat * heads + h) * width * size, width)


@one_at_a_time
@njit(parallel=True, nogil=True)
def _forward(
    kind: int, size: int,
    q: int, q_row: int, q_head: int, k: int, k_row: int, k_head: int, v: int, v_row: int, v_head: int,
    k_pages: int, k_page: int, k_page_head: int, k_key: int, v_pages: int, v_page: int, v_page_head: int, v_key: int,
    out: int, heads: int, kv_heads: int, dims: int, width: int, page_size: int, window: int, partials: int,
    longest: int, tree_tiles: int, work: int, threads: int, scale: float, softcap: float,
    sinks: int, slots: Any, page_table: Any, paths: Any, items: Any, merges: Any, blank: Any,
) -> None:  # fmt: skip
    queries, keys, values = (
        (q, q_row, q_head),
        (k_pages, k_page, k_page_head, k_key),
        (v_pages, v_page, v_page_head, v_key),
    )
    _write(slots, page_size, (k, k_row, k_head), keys, kv_heads, dims * size)
    _write(slots, page_size, (v, v_row, v_head), values, kv_heads, width * size)
    for n in range(len(blank)):
        ops.clear(out + blank[n] * heads * width * size, heads * width * size)
    group, columns = heads // kv_heads, (width + 15) // 16 * 16
    record = columns + softmax_simd.RECORD
    records = np.empty(partials * heads * record + 16, np.float32)
    shared = (records.ctypes.data + 63) // 64 * 64
    room = KEYS * (dims + columns) + SCORES + longest * group * (dims + 2 * record)
    room += tree_tiles * KEYS * (columns + longest * group)
    room = (room + 15) // 16 * 16
    positions = np.empty(len(slots), np.int64)
    ends = np.empty(len(slots), np.int64)  # the positions past the last that rows see
    for n in range(len(items)):
        start, low, past, tree, mutual = items[n, 1], items[n, 3], items[n, 5], items[n, 6], items[n, 10]
        for row in range(start, start + items[n, 2]):
            positions[row] = low + row - start if tree < 0 else tree - 1 + paths[row + 1] - paths[row]
            ends[row] = min(positions[row] + window, past) if mutual else positions[row] + 1
    # Vectors of 64 bytes that straddle two cache lines cost double, hence the aligned addresses.
    tasks = len(items) * kv_heads
    if work * heads <= SMALL:
        scratch = np.empty(room + 16, np.float32)
        for task in range(tasks):
            own = (scratch.ctypes.data + 63) // 64 * 64
            item, head = items[task // kv_heads], task % kv_heads
            _task(kind, size, item, page_table[item[0]], page_size, head, queries, keys, values, out, heads, group,
                  dims, width, columns, window, scale, softcap, sinks, positions, ends, paths, own, shared,
                  tree_tiles)  # fmt: skip
    else:
        scratches = np.empty(threads * room + 16, np.float32)
        for task in prange(tasks):
            own = (scratches.ctypes.data + 63) // 64 * 64 + get_thread_id() * room * 4
            item, head = items[task // kv_heads], task % kv_heads
            _task(kind, size, item, page_table[item[0]], page_size, head, queries, keys, values, out, heads, group,
                  dims, width, columns, window, scale, softcap, sinks, positions, ends, paths, own, shared,
                  tree_tiles)  # fmt: skip
    for n in range(len(merges)):
        _merge(kind, size, merges[n], heads, group, width, columns, out, sinks, shared)
    records[0] = 0.0  # numba drops an array after its last mention, and knows nothing of addresses


def _rows_of(x: Tensor) -> Tensor:
    """Return x, copied only if the last dimension is strided."""
    return x if x.stride(2) == 1 else x.contiguous()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    step: AttentionStep,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Write k and v into the pages, then attend; see `attention_reference` for arguments, shapes and meaning.

    What the kernel does not serve goes to the reference: other devices, dtypes it does not know, mixed dtypes.
    """
    kind = _KINDS.get(q.dtype)
    if kind is None or q.device.type != "cpu" or not simd.HAS_FMA or not q.dtype == k_pages.dtype == k.dtype == v.dtype:
        return attention_reference(
            q, k, v, k_pages, v_pages, step, scaling=scaling, softcap=softcap, sinks=sinks, window=window
        )
    reach = UNBOUNDED if window is None else window
    cut: Plan | None = step.plans.get(("numba", reach))
    if cut is None:
        cut = step.plans[("numba", reach)] = plan(step, reach, k.shape[1], _THREADS)
    q, k, v = _rows_of(q), _rows_of(k), _rows_of(v)
    if sinks is not None:
        sinks = sinks.float().contiguous()
    rows, heads, dims = q.shape
    kv_heads, width, size = k.shape[1], v.shape[2], q.element_size()
    out = torch.empty(rows, heads, width, dtype=q.dtype)
    q_row, q_head, _ = q.stride()
    k_row, k_head, _ = k.stride()
    v_row, v_head, _ = v.stride()
    k_page, k_page_head, k_key, _ = k_pages.stride()
    v_page, v_page_head, v_key, _ = v_pages.stride()
    _forward(
        kind, size,
        q.data_ptr(), q_row * size, q_head * size, k.data_ptr(), k_row * size, k_head * size,
        v.data_ptr(), v_row * size, v_head * size,
        k_pages.data_ptr(), k_page * size, k_page_head * size, k_key * size,
        v_pages.data_ptr(), v_page * size, v_page_head * size, v_key * size,
        out.data_ptr(), heads, kv_heads, dims, width, step.page_size,
        reach, cut.partials, cut.longest, cut.tiles, cut.work, _THREADS,
        scaling if softcap else scaling * _LOG2E, softcap or 0.0,
        0 if sinks is None else sinks.data_ptr(),
        cut.slots, cut.page_table, cut.paths, cut.items, cut.merges, cut.blank,
    )  # fmt: skip
    return out
