"""The attention op on a CPU: one compiled kernel over pages for decode rows and prompt chunks alike.

A row's result is a function of its own query and its own keys. Keys are cut at fixed positions: tiles of KEYS, within
chunks of CHUNK counted from key 0. A row goes through the tiles that it sees in order, each lane of the arithmetic its
own, and the chunks that it sees are joined in order. Its neighbours share the converted tiles with it, and nothing
else; how the work is cut into tasks does not show either. A row of a tree goes through its keys in order of position,
and so gives the bits of a row of a chain with the same keys.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import torch
from numba import config, get_thread_id, prange
from torch import Tensor

from specdec_nn.ops.attention import tiles
from specdec_nn.ops.attention.call import CALL_FORMAT, ITEM, MERGE, Task, call_at, item_at, merge_at
from specdec_nn.ops.attention.plan import CHUNK, UNBOUNDED, Plan, plan
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference, rows_of
from specdec_nn.ops.attention.tiles import BLOCK, KEYS, SCORES
from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu import outline, simd
from specdec_nn.ops.cpu import softmax as softmax_simd
from specdec_nn.ops.cpu.elements import KINDS, clear, copy_bytes, floats, narrow, widen
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.records import integers
from specdec_nn.turns import one_at_a_time

SMALL: Final = 1024  # (row, key) pairs of all heads below which waking the other cores costs more than it saves

_KINDS: Final = {getattr(torch, name): index for index, name in enumerate(KINDS)}
_THREADS: Final = int(config.NUMBA_NUM_THREADS)  # an argument of the kernel: cached code must not depend on it

_ITEM_BYTES: Final = ITEM.itemsize
_MERGE_BYTES: Final = MERGE.itemsize
_ALIGN: Final = 64  # vectors that straddle two cache lines cost double


@njit(nogil=True, error_model="numpy")
def write_row(call: Any, row: int) -> None:
    """Copy a row's keys and values into its slot; slot -1 writes nothing."""
    slot = integers(call.slots, call.rows)[row]
    if slot < 0:
        return
    page, offset = slot // call.page_size, slot % call.page_size
    k, v = call.k + row * call.k_row, call.v + row * call.v_row
    k_place = call.k_pages + page * call.k_page + offset * call.k_key
    v_place = call.v_pages + page * call.v_page + offset * call.v_key
    for h in range(call.kv_heads):
        copy_bytes(k + h * call.k_head, k_place + h * call.k_page_head, call.dims * call.size)
        copy_bytes(v + h * call.v_head, v_place + h * call.v_page_head, call.width * call.size)


@njit(nogil=True, error_model="numpy")
def scratch_bytes(call: Any) -> int:
    """Return how much scratch memory one task needs; a multiple of 64."""
    dims, columns, record = call.dims, call.columns, call.record // 4
    floats = 2 * KEYS + KEYS * (dims + columns) + SCORES + call.longest * call.group * (dims + 2 * record)
    floats += call.tree_tiles * KEYS * (columns + call.longest * call.group)
    whole: int = (floats * 4 + _ALIGN - 1) // _ALIGN * _ALIGN
    return whole


@njit(nogil=True, error_model="numpy")
def _task(call: Any, item: Any, head: int, scratch: int, partials: int) -> Task:
    """Lay a task out in scratch memory, see `scratch_bytes`, and load its queries."""
    count = item.rows * call.group
    keys = scratch + KEYS * 8
    values = keys + KEYS * call.dims * 4
    scores = values + KEYS * call.columns * 4
    running = scores + SCORES * 4
    tree_values = running + 2 * count * call.record
    tree_scores = tree_values + call.tree_tiles * KEYS * call.columns * 4
    queries = tree_scores + call.tree_tiles * count * KEYS * 4
    states = running + count * call.record
    if item.partial >= 0:
        states = partials + (item.partial * call.heads + head * count) * call.record
    page_table = call.page_table + item.segment * call.table_width * 8
    positions, ends = call.positions + item.start * 8, call.ends + item.start * 8
    # Columns past the width and lanes past the keys are multiplied, if by nothing.
    clear(keys, scores - keys)
    for n in range(count):
        row, own = item.start + n // call.group, head * call.group + n % call.group
        source = call.q + row * call.q_row + own * call.q_head
        widen(call.kind, source, queries + n * call.dims * 4, call.dims, call.scale)
        softmax_simd.begin(running + n * call.record, call.columns)
    return Task(head, item.start, item.rows, item.low, item.past, item.tree, page_table, positions, ends, scratch,
                queries, keys, values, scores, running, states, tree_values, tree_scores)  # fmt: skip


def _run_task(address: int, number: int, scratch: int, partials: int) -> None:
    """Run task `number` of item_count * kv_heads: some rows, and the heads of one kv head, over some chunks.

    All chunks of the rows (item.partial < 0): write the output. Else, a single chunk: leave the records in `partials`.
    """
    call = call_at(address)
    item = item_at(call.items + number // call.kv_heads * _ITEM_BYTES)
    task = _task(call, item, number % call.kv_heads, scratch, partials)
    count, tree, whole = item.rows * call.group, item.tree, item.partial < 0
    shared = tree // KEYS if tree >= 0 else CHUNK * item.end_chunk  # tiles before it are the same for all rows
    if shared * KEYS < CHUNK * item.end_chunk:
        # With a window, keys before the first that is seen may be somebody else's by now.
        tiles.score_tree(call, task, max(shared * KEYS, min(item.low - call.window + 1, tree)))
        for n in range(BLOCK):
            floats(task.scores)[tiles.ONES + n] = np.float32(1.0)
    for chunk in range(item.first_chunk, item.end_chunk):
        for n in range(count):
            softmax_simd.begin(task.states + n * call.record, call.columns)
        begin = max(chunk * CHUNK, item.low - call.window + 1)
        end = min((chunk + 1) * CHUNK, item.high + 1)
        for tile in range(begin // KEYS, (end + KEYS - 1) // KEYS):
            origin = tile * KEYS
            if tile < shared:
                tiles.load(call, task, max(origin, begin), min(origin + KEYS, end), task.values)
                tiles.take(call, task, origin)
            else:
                tiles.take_branches(call, task, origin)
        if whole:
            for n in range(count):
                softmax_simd.join(task.running + n * call.record, task.states + n * call.record, call.columns)
    if whole:
        for n in range(count):
            _finish(call, task.running + n * call.record, item.start + n // call.group,
                    task.head * call.group + n % call.group)  # fmt: skip


@functools.cache
def task() -> Any:
    """Return `_run_task` as a function for `outline.call`, the first argument the address of a CALL record."""
    return outline.outlined(_run_task)


@njit(nogil=True, error_model="numpy")
def _finish(call: Any, record: int, row: int, head: int) -> None:
    """Write the result of a row and head from its record."""
    softmax_simd.finish(record, call.columns, call.sinks + head * 4 if call.sinks != 0 else 0)
    narrow(call.kind, record, call.out + (row * call.heads + head) * call.width * call.size, call.width)


@njit(nogil=True, error_model="numpy")
def run_merge(call: Any, number: int, partials: int) -> None:
    """Join the chunks of a row in order, and write it; `number` counts the rows that are cut into chunks."""
    merge = merge_at(call.merges + number * _MERGE_BYTES)
    for head in range(call.heads):
        place = (head // call.group * merge.rows + merge.place) * call.group + head % call.group
        state = partials + (merge.partial * call.heads + place) * call.record
        for chunk in range(1, merge.chunks):
            softmax_simd.join(state, state + chunk * merge.rows * call.heads * call.record, call.columns)
        _finish(call, state, merge.row, head)


@one_at_a_time
@njit(parallel=True, nogil=True)
def _forward(packed: Any, threads: int, run_task: int) -> None:
    """Run a call, given the bytes of its record, and the address of `task`."""
    address = packed.ctypes.data
    call = call_at(address)
    for row in range(call.rows):
        write_row(call, row)
    blank = integers(call.blank, call.blank_count)
    for n in range(len(blank)):
        clear(call.out + blank[n] * call.heads * call.width * call.size, call.heads * call.width * call.size)
    records = np.empty(call.partial_rows * call.heads * call.record + _ALIGN, np.uint8)
    partials = (records.ctypes.data + _ALIGN - 1) // _ALIGN * _ALIGN
    room, tasks = scratch_bytes(call), call.item_count * call.kv_heads
    if call.work * call.heads <= SMALL:
        scratch = np.empty(room + _ALIGN, np.uint8)
        for number in range(tasks):
            own = (scratch.ctypes.data + _ALIGN - 1) // _ALIGN * _ALIGN
            outline.call(run_task, (address, number, own, partials))
    else:
        scratches = np.empty(threads * room + _ALIGN, np.uint8)
        for number in prange(tasks):
            own = (scratches.ctypes.data + _ALIGN - 1) // _ALIGN * _ALIGN + get_thread_id() * room
            outline.call(run_task, (address, number, own, partials))
    for number in range(call.merge_count):
        run_merge(call, number, partials)
    records[0] = packed[0]  # numba drops an array after its last mention, and knows nothing of addresses


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
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    if sinks is not None:
        sinks = sinks.float().contiguous()
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
    scale = (scaling if softcap else scaling * LOG2E, softcap or 0.0)
    numbers = _numbers(kind, (q, k, v, k_pages, v_pages), out, sinks)
    call = CALL_FORMAT.pack(*numbers, reach, *cut.numbers, *scale)
    _forward(np.frombuffer(call, np.uint8), _THREADS, task().address)
    return out


def _numbers(kind: int, inputs: tuple[Tensor, ...], out: Tensor, sinks: Tensor | None) -> tuple[int, ...]:
    """Return the fields of CALL up to `record`; inputs are q, k, v, k_pages, v_pages."""
    q, k, v, k_pages, v_pages = inputs
    size, heads, kv_heads, width = out.element_size(), out.shape[1], k.shape[1], out.shape[2]
    q_row, q_head, _ = q.stride()
    k_row, k_head, _ = k.stride()
    v_row, v_head, _ = v.stride()
    k_page, k_page_head, k_key, _ = k_pages.stride()
    v_page, v_page_head, v_key, _ = v_pages.stride()
    columns = -(-width // simd.LANES) * simd.LANES
    return (
        kind, size,
        q.data_ptr(), q_row * size, q_head * size,
        k.data_ptr(), k_row * size, k_head * size,
        v.data_ptr(), v_row * size, v_head * size,
        k_pages.data_ptr(), k_page * size, k_page_head * size, k_key * size,
        v_pages.data_ptr(), v_page * size, v_page_head * size, v_key * size,
        out.data_ptr(), 0 if sinks is None else sinks.data_ptr(),
        heads, kv_heads, heads // kv_heads, q.shape[2], width, columns, (columns + softmax_simd.RECORD) * 4,
    )  # fmt: skip
