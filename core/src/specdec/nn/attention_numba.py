"""The attention op on a CPU: one compiled kernel over pages for decode rows and prompt chunks alike.

A row's result is a function of its own query and its own keys. Keys are cut at fixed positions: tiles of KEYS, within
chunks of CHUNK counted from key 0. A row goes through the tiles that it sees in order, each lane of the arithmetic its
own, and the chunks that it sees are joined in order. Its neighbours share the converted tiles with it, and nothing
else; how the work is cut into tasks does not show either.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from numba import config, get_thread_id, njit, prange
from torch import Tensor

from specdec.nn import attention_simd as ops
from specdec.nn import simd, softmax_simd
from specdec.nn.attention import AttentionStep, attention_reference

KEYS: Final = softmax_simd.KEYS
BLOCK: Final = ops.BLOCK
CHUNK: Final = 4 * KEYS  # keys a task where tasks are few: a long context then spreads over the cores
ROWS: Final = 64  # rows a task: shares one conversion of keys and values, and bounds the scratch
SMALL: Final = 1024  # (row, key) pairs of all heads below which waking the other cores costs more than it saves

_KINDS: Final = {getattr(torch, name): index for index, name in enumerate(ops.KINDS)}
_LOG2E: Final = softmax_simd.LOG2E
_UNBOUNDED: Final = 1 << 62  # a window that hides nothing
_THREADS: Final = int(config.NUMBA_NUM_THREADS)  # an argument of the kernel: cached code must not depend on it


Place = tuple[int, int, int]  # address, bytes from row to row, bytes from head to head
Pages = tuple[int, int, int, int]  # address, bytes from page to page, from head to head, from key to key


@njit(nogil=True, cache=True, error_model="numpy")
def _write(slots: Any, page_size: int, source: Place, pages: Pages, heads: int, count: int) -> None:
    """Copy `count` bytes a row and head into the rows' slots; slot -1 writes nothing."""
    for row in range(len(slots)):
        if slots[row] >= 0:
            page = slots[row] // page_size
            place = pages[0] + page * pages[1] + (slots[row] - page * page_size) * pages[3]
            for h in range(heads):
                ops.copy_bytes(source[0] + row * source[1] + h * source[2], place + h * pages[2], count)


@njit(nogil=True, cache=True, error_model="numpy")
def _load(
    kind: int, size: int, table: Any, page_size: int, first: int, end: int, head: int, k_pages: Pages, v_pages: Pages,
    dims: int, width: int, columns: int, pointers: Any, keys: int, values: int,
) -> None:  # fmt: skip
    """Load positions first .. end - 1 of one tile: keys [dims, KEYS] and values [KEYS, columns], float32."""
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


@njit(nogil=True, cache=True, error_model="numpy")
def _tile(
    origin: int, rows: int, context: int, window: int, group: int, dims: int, columns: int, softcap: float,
    queries: int, keys: int, values: int, scores: int, states: int,
) -> None:  # fmt: skip
    """Take one tile, whose first key is at position `origin`, into the records of all rows and heads that see it."""
    record = (columns + softmax_simd.RECORD) * 4
    factors = scores + BLOCK * KEYS * 4
    # Whole rows where they fit: the heads of one row see the same keys.
    block = BLOCK // group * group if group <= BLOCK else BLOCK
    for at in range(0, rows * group, block):
        count = min(block, rows * group - at)
        last = (at + count - 1) // group
        if context + last < origin or context + at // group - window + 1 >= origin + KEYS:
            continue
        ops.score(count, queries + at * dims * 4, dims, keys, scores)
        m = 0
        while m < count:
            r = (at + m) // group
            seen = max(context + r - window + 1 - origin, 0)
            past = min(context + r + 1 - origin, KEYS)
            # Rows that see the whole tile go together, others with the heads of their own row.
            run = min(count - m, (r + 1) * group - at - m)
            if seen == 0 and past == KEYS and context + last - window + 1 <= origin:
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


@njit(nogil=True, cache=True, error_model="numpy")
def _task(
    kind: int, size: int, item: Any, table: Any, page_size: int, head: int, q: Place, k_pages: Pages, v_pages: Pages,
    out: int, heads: int, group: int, dims: int, width: int, columns: int, window: int, scale: float, softcap: float,
    sinks: int, scratch: int, partials: int,
) -> None:  # fmt: skip
    """Run some rows of a segment, and the heads of one kv head, over some chunks.

    All chunks of the rows (item[6] < 0): write the output. Else, a single chunk: leave the records in `partials`.
    """
    start, rows, context, whole = item[1], item[2], item[3], item[6] < 0
    count, record = rows * group, (columns + softmax_simd.RECORD) * 4
    pointers = np.empty(KEYS, np.int64)
    keys = scratch
    values = keys + KEYS * dims * 4
    scores = values + KEYS * columns * 4
    running = scores + (BLOCK * KEYS + 16) * 4
    states = running + count * record if whole else partials + (item[6] * heads + head * count) * record
    queries = running + 2 * count * record
    ops.clear(scratch, scores - scratch)  # columns past the width and lanes past the keys are multiplied, if by nothing
    for n in range(count):
        source = q[0] + (start + n // group) * q[1] + (head * group + n % group) * q[2]
        ops.widen(kind, source, queries + n * dims * 4, dims, np.float32(scale))
        softmax_simd.begin(running + n * record, columns)
    for chunk in range(item[4], item[5]):
        for n in range(count):
            softmax_simd.begin(states + n * record, columns)
        begin = max(chunk * CHUNK, context - window + 1)
        end = min((chunk + 1) * CHUNK, context + rows)
        for tile in range(begin // KEYS, (end + KEYS - 1) // KEYS):
            origin = tile * KEYS
            _load(kind, size, table, page_size, max(origin, begin), min(origin + KEYS, end), head, k_pages, v_pages,
                  dims, width, columns, pointers, keys, values)  # fmt: skip
            _tile(origin, rows, context, window, group, dims, columns, softcap, queries, keys, values, scores, states)
        if whole:
            for n in range(count):
                softmax_simd.join(running + n * record, states + n * record, columns)
    if whole:
        for n in range(count):
            h = head * group + n % group
            softmax_simd.finish(running + n * record, columns, sinks + h * 4 if sinks != 0 else 0)
            ops.narrow(kind, running + n * record, out + ((start + n // group) * heads + h) * width * size, width)


@njit(nogil=True, cache=True, error_model="numpy")
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


@njit(parallel=True, nogil=True, cache=True)
def _forward(
    kind: int, size: int,
    q: int, q_row: int, q_head: int, k: int, k_row: int, k_head: int, v: int, v_row: int, v_head: int,
    k_pages: int, k_page: int, k_page_head: int, k_key: int, v_pages: int, v_page: int, v_page_head: int, v_key: int,
    out: int, heads: int, kv_heads: int, dims: int, width: int, page_size: int, window: int, partials: int,
    longest: int, work: int, threads: int, scale: float, softcap: float,
    sinks: int, slots: Any, page_table: Any, items: Any, merges: Any, blank: Any,
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
    room = KEYS * (dims + columns) + BLOCK * KEYS + 16 + longest * group * (dims + 2 * record)
    room = (room + 15) // 16 * 16
    # Vectors of 64 bytes that straddle two cache lines cost double, hence the aligned addresses.
    tasks = len(items) * kv_heads
    if work * heads <= SMALL:
        scratch = np.empty(room + 16, np.float32)
        for task in range(tasks):
            own = (scratch.ctypes.data + 63) // 64 * 64
            item, head = items[task // kv_heads], task % kv_heads
            _task(kind, size, item, page_table[item[0]], page_size, head, queries, keys, values, out, heads, group,
                  dims, width, columns, window, scale, softcap, sinks, own, shared)  # fmt: skip
    else:
        scratches = np.empty(threads * room + 16, np.float32)
        for task in prange(tasks):
            own = (scratches.ctypes.data + 63) // 64 * 64 + get_thread_id() * room * 4
            item, head = items[task // kv_heads], task % kv_heads
            _task(kind, size, item, page_table[item[0]], page_size, head, queries, keys, values, out, heads, group,
                  dims, width, columns, window, scale, softcap, sinks, own, shared)  # fmt: skip
    for n in range(len(merges)):
        _merge(kind, size, merges[n], heads, group, width, columns, out, sinks, shared)
    records[0] = 0.0  # numba drops an array after its last mention, and knows nothing of addresses


@dataclass(slots=True, eq=False)
class _Plan:
    """The kernel's tables of one step and window.

    slots, page_table  of the step, in int64
    items     [n, 7] segment, first flat row, rows, position of the first, first chunk, chunk past the last, and rows of
              partial results before this one's, or -1 where the item has all chunks of its rows
    merges    [rows, 5] flat row, row of its item, rows of its item, rows of partial results before its first, chunks
    blank     flat rows of no segment
    partials  rows of partial results
    longest   most rows of an item
    work      (row, key) pairs
    """

    slots: npt.NDArray[np.int64]
    page_table: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    merges: npt.NDArray[np.int64]
    blank: npt.NDArray[np.int64]
    partials: int
    longest: int
    work: int


def _plan(step: AttentionStep, window: int, kv_heads: int, threads: int) -> _Plan:
    """Return the tables of a step, made once for all its layers of one window; `threads` share the work."""
    blocks = [
        (s, start + r, min(ROWS, rows - r), context + r)
        for s, (start, rows, context) in enumerate(
            zip(step.seg_start.tolist(), step.seg_rows.tolist(), step.seg_context.tolist(), strict=True)
        )
        for r in range(0, rows, ROWS)
    ]
    split = len(blocks) * kv_heads < 4 * threads
    items: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    partials = work = 0
    covered = np.zeros(len(step.slots), np.bool_)
    for s, start, rows, context in blocks:
        covered[start : start + rows] = True
        work += rows * min(context + rows, window)
        begin, end = max(0, context + 1 - window) // CHUNK, (context + rows - 1) // CHUNK + 1
        if not split or end - begin == 1:
            items.append((s, start, rows, context, begin, end, -1))
            continue
        for r in range(rows):
            first = max(0, context + r + 1 - window) // CHUNK
            chunks = (context + r) // CHUNK + 1 - first
            merges.append((start + r, r, rows, partials + (first - begin) * rows, chunks))
        for chunk in range(begin, end):
            items.append((s, start, rows, context, chunk, chunk + 1, partials))
            partials += rows
    # Each core gets a stretch of the tasks. Dealing the items out evens the stretches: later blocks see more keys.
    dealt = [item for core in range(threads) for item in items[core::threads]]
    return _Plan(
        slots=step.slots.astype(np.int64),
        page_table=step.page_table.astype(np.int64),
        items=np.array(dealt, np.int64).reshape(-1, 7),
        merges=np.array(merges, np.int64).reshape(-1, 5),
        blank=np.flatnonzero(~covered),
        partials=partials,
        longest=max((rows for _, _, rows, _ in blocks), default=0),
        work=work,
    )


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
    reach = _UNBOUNDED if window is None else window
    plan: _Plan | None = step.plans.get(("numba", reach))
    if plan is None:
        plan = step.plans[("numba", reach)] = _plan(step, reach, k.shape[1], _THREADS)
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
        reach, plan.partials, plan.longest, plan.work, _THREADS,
        scaling if softcap else scaling * _LOG2E, softcap or 0.0,
        0 if sinks is None else sinks.data_ptr(),
        plan.slots, plan.page_table, plan.items, plan.merges, plan.blank,
    )  # fmt: skip
    return out
