"""The compiled pass: every thread of a team runs all layers, and waits for the others between their parts.

It reads the tables of `tables.py` and knows nothing of modules. Rows, tiles of outputs, and tasks of attention are
shared out by number; who does what does not show in the result.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from specdec_nn.fused import elementwise as rows_of
from specdec_nn.fused.tables import F, L, P, S
from specdec_nn.ops.attention import simd as ops
from specdec_nn.ops.attention.numba import _merge, _task
from specdec_nn.ops.cpu.jit import cfunc, njit
from specdec_nn.ops.cpu.team import HEAD, WORKER, _ask
from specdec_nn.ops.linear import numba as products
from specdec_nn.ops.linear.numba import BLOCK, ROW_CHUNK, TILE

FLOAT32, BFLOAT16 = ops.KINDS.index("float32"), ops.KINDS.index("bfloat16")
HAS_HALF: Final = "float16" in ops.KINDS
SEGMENT, START, COUNT, LOW, PAST, TREE, MUTUAL = 0, 1, 2, 3, 5, 6, 10  # columns of a plan's items
ITEM_COLUMNS, MERGE_COLUMNS = 11, 5
STEP_COLUMNS, LAYER_COLUMNS, FLOAT_COLUMNS, PLAN_COLUMNS = len(S), len(L), len(F), len(P)


@intrinsic
def _integers(_: Any, at: Any) -> Any:
    """Return an address as a pointer to int64."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        return b.inttoptr(values[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def _floats(_: Any, at: Any) -> Any:
    """Return an address as a pointer to float64."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        return b.inttoptr(values[0], ir.DoubleType().as_pointer())

    return types.CPointer(types.float64)(types.int64), codegen


@intrinsic
def _wait(_: Any, barrier: Any) -> Any:
    """Call void f(void) at an address: all threads of the team meet there."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        b.call(b.inttoptr(values[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@njit(nogil=True, error_model="numpy")
def _widened(kind: int, x: int, count: int, inputs: int, wide: int) -> int:
    """Return the address of float32 rows as the linear op's tiles want them, at `wide` unless they are so already."""
    if kind == FLOAT32:
        return x
    stride = inputs + inputs % 2 if kind == BFLOAT16 else inputs
    for r in range(count):
        ops.widen(kind, x + r * inputs * 2, wide + r * stride * 4, inputs, np.float32(1.0))
        if stride > inputs:
            ops.clear(wide + (r * stride + inputs) * 4, 4)
    return wide


@njit(nogil=True, error_model="numpy")
def _tile(kind: int, wide: int, inputs: int, weight: int, bias: int, out: int, rows: int, outputs: int, t: int) -> None:
    """Write tile t of the outputs of a linear layer for all rows."""
    for r in range(0, rows, BLOCK):
        count = min(BLOCK, rows - r)
        bias_at = bias + t * TILE * 4
        room = outputs - t * TILE
        if kind == BFLOAT16:
            groups = (inputs + 1) // 2
            products._tile_bf16(count, wide + r * groups * 8, 2 * groups, groups, weight + t * TILE * groups * 4,
                                bias_at, out + (r * outputs + t * TILE) * 2, outputs, room)  # fmt: skip
        elif kind == FLOAT32:
            products._tile_f32(count, wide + r * inputs * 4, inputs, inputs, weight + t * TILE * inputs * 4,
                               bias_at, out + (r * outputs + t * TILE) * 4, outputs, room)  # fmt: skip
        elif HAS_HALF:
            products._tile_f16(count, wide + r * inputs * 4, inputs, inputs, weight + t * TILE * inputs * 2,
                               bias_at, out + (r * outputs + t * TILE) * 2, outputs, room)  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _project(
    kind: int, x: int, inputs: int, weight: int, bias: int, out: int, rows: int, outputs: int, me: int, all_: int,
    wide: int,
) -> None:  # fmt: skip
    """Do this thread's tiles of one linear layer."""
    count, size = (outputs + TILE - 1) // TILE, 4 if kind == FLOAT32 else 2
    for r in range(0, rows, ROW_CHUNK):
        some = min(ROW_CHUNK, rows - r)
        source = _widened(kind, x + r * inputs * size, some, inputs, wide)
        for t in range(count * me // all_, count * (me + 1) // all_):
            _tile(kind, source, inputs, weight, bias, out + r * outputs * size, some, outputs, t)


@njit(nogil=True, error_model="numpy")
def _project_heads(s: Any, layer: Any, me: int, all_: int, wide: int) -> None:
    """Do this thread's tiles of queries, keys and values."""
    kind, size, inputs = s[S.KIND], s[S.SIZE], s[S.HIDDEN]
    q_outputs, outputs = s[S.HEADS] * s[S.DIMS], s[S.KV_HEADS] * s[S.DIMS]
    q_count, count = (q_outputs + TILE - 1) // TILE, (outputs + TILE - 1) // TILE
    together = q_count + 2 * count
    for r in range(0, s[S.ROWS], ROW_CHUNK):
        rows, at = min(ROW_CHUNK, s[S.ROWS] - r), r * outputs * size
        source = _widened(kind, s[S.NORMED] + r * inputs * size, rows, inputs, wide)
        for t in range(together * me // all_, together * (me + 1) // all_):
            if t < q_count:
                place = s[S.Q] + r * q_outputs * size
                _tile(kind, source, inputs, layer[L.Q], layer[L.Q_BIAS], place, rows, q_outputs, t)
            elif t < q_count + count:
                _tile(kind, source, inputs, layer[L.K], layer[L.K_BIAS], s[S.K] + at, rows, outputs, t - q_count)
            else:
                tile = t - q_count - count
                _tile(kind, source, inputs, layer[L.V], layer[L.V_BIAS], s[S.V] + at, rows, outputs, tile)


@njit(nogil=True, error_model="numpy")
def _project_gate(s: Any, layer: Any, me: int, all_: int, wide: int) -> None:
    """Do this thread's tiles of gate and up, and the activation of what they give."""
    kind, size, inputs, inner = s[S.KIND], s[S.SIZE], s[S.HIDDEN], layer[L.INNER]
    count = (inner + TILE - 1) // TILE
    for r in range(0, s[S.ROWS], ROW_CHUNK):
        rows = min(ROW_CHUNK, s[S.ROWS] - r)
        source = _widened(kind, s[S.NORMED] + r * inputs * size, rows, inputs, wide)
        gate, up = s[S.GATE] + r * inner * size, s[S.UP] + r * inner * size
        for t in range(count * me // all_, count * (me + 1) // all_):
            _tile(kind, source, inputs, layer[L.GATE], layer[L.GATE_BIAS], gate, rows, inner, t)
            _tile(kind, source, inputs, layer[L.UP], layer[L.UP_BIAS], up, rows, inner, t)
            for m in range(rows):
                at = (m * inner + t * TILE) * size
                rows_of.gate(kind, s[S.ACTIVATION], gate + at, up + at, min(TILE, inner - t * TILE))


@njit(nogil=True, error_model="numpy")
def _heads(s: Any, layer: Any, floats: Any, ropes: Any, me: int, all_: int) -> None:
    """Norm and turn this thread's heads of queries and keys, and write keys and values into their pages."""
    kind, style, heads, kv_heads, dims = s[S.KIND], s[S.STYLE], s[S.HEADS], s[S.KV_HEADS], s[S.DIMS]
    bytes_ = dims * s[S.SIZE]
    each = heads + 2 * kv_heads
    count = s[S.ROWS] * each
    slots = carray(_integers(s[S.SLOTS]), (s[S.ROWS],))
    for n in range(count * me // all_, count * (me + 1) // all_):
        row, h = n // each, n % each
        is_query, is_value = h < heads, h >= heads + kv_heads
        if is_query:
            place, weight, epsilon = s[S.Q] + (row * heads + h) * bytes_, layer[L.Q_NORM], floats[F.Q_NORM]
        elif is_value:
            place = s[S.V] + (row * kv_heads + h - heads - kv_heads) * bytes_
            weight, epsilon = 0, 0.0
        else:
            place, weight, epsilon = s[S.K] + (row * kv_heads + h - heads) * bytes_, layer[L.K_NORM], floats[F.K_NORM]
        if weight != 0:
            rows_of.norm(kind, style, place, weight, place, dims, np.float32(epsilon))
        if not is_value and layer[L.ROPE] >= 0:
            rope, at = layer[L.ROPE] * 2, row * 2 * s[S.HALF] * s[S.SIZE]
            rows_of.rotate(kind, place, ropes[rope] + at, ropes[rope + 1] + at, s[S.HALF])
        if not is_query and slots[row] >= 0:
            page = slots[row] // s[S.PAGE_SIZE]
            offset = slots[row] - page * s[S.PAGE_SIZE]
            if is_value:
                target = layer[L.V_PAGES] + page * s[S.V_PAGE] + (h - heads - kv_heads) * s[S.V_HEAD]
                target += offset * s[S.V_KEY]
            else:
                target = layer[L.K_PAGES] + page * s[S.K_PAGE] + (h - heads) * s[S.K_HEAD] + offset * s[S.K_KEY]
            ops.copy_bytes(place, target, bytes_)


@njit(nogil=True, error_model="numpy")
def _attend(s: Any, layer: Any, floats: Any, plan: Any, me: int, all_: int, scratch: int) -> None:
    """Do this thread's tasks of attention, and wait where chunks are to be joined."""
    heads, kv_heads, dims, rows, size = s[S.HEADS], s[S.KV_HEADS], s[S.DIMS], s[S.ROWS], s[S.SIZE]
    group, columns, row_bytes = heads // kv_heads, (dims + 15) // 16 * 16, dims * size
    items = carray(_integers(plan[P.ITEMS]), (plan[P.ITEM_COUNT], ITEM_COLUMNS))
    paths = carray(_integers(plan[P.PATHS]), (plan[P.PATH_LENGTH],))
    positions = carray(_integers(plan[P.POSITIONS]), (rows,))
    ends = carray(_integers(plan[P.ENDS]), (rows,))
    table = carray(_integers(s[S.PAGES]), (s[S.SEGMENTS], s[S.PAGE_COLUMNS]))
    tasks = len(items) * kv_heads
    for task in range(tasks * me // all_, tasks * (me + 1) // all_):
        item = items[task // kv_heads]
        _task(s[S.KIND], size, item, table[item[SEGMENT]], s[S.PAGE_SIZE], task % kv_heads,
              (s[S.Q], heads * row_bytes, row_bytes), (layer[L.K_PAGES], s[S.K_PAGE], s[S.K_HEAD], s[S.K_KEY]),
              (layer[L.V_PAGES], s[S.V_PAGE], s[S.V_HEAD], s[S.V_KEY]), s[S.MIXED], heads, group, dims, dims, columns,
              layer[L.WINDOW], floats[F.SCALE], floats[F.SOFTCAP], layer[L.SINKS], positions, ends, paths, scratch,
              s[S.PARTIALS], plan[P.TREE_TILES])  # fmt: skip
    if plan[P.MERGE_COUNT] > 0:
        _wait(s[S.BARRIER])
        merges = carray(_integers(plan[P.MERGES]), (plan[P.MERGE_COUNT], MERGE_COLUMNS))
        for n in range(len(merges) * me // all_, len(merges) * (me + 1) // all_):
            _merge(s[S.KIND], size, merges[n], heads, group, dims, columns, s[S.MIXED], layer[L.SINKS], s[S.PARTIALS])


@njit(nogil=True, error_model="numpy")
def _places(s: Any, plans: Any) -> None:
    """Fill positions and ends of every plan, and clear what attention leaves out."""
    rows = s[S.ROWS]
    for p in range(len(plans)):
        plan = plans[p]
        items = carray(_integers(plan[P.ITEMS]), (plan[P.ITEM_COUNT], ITEM_COLUMNS))
        paths = carray(_integers(plan[P.PATHS]), (plan[P.PATH_LENGTH],))
        positions = carray(_integers(plan[P.POSITIONS]), (rows,))
        ends = carray(_integers(plan[P.ENDS]), (rows,))
        for n in range(len(items)):
            start, low, tree = items[n, START], items[n, LOW], items[n, TREE]
            for row in range(start, start + items[n, COUNT]):
                positions[row] = low + row - start if tree < 0 else tree - 1 + paths[row + 1] - paths[row]
                ends[row] = positions[row] + 1
    blank = carray(_integers(s[S.BLANK]), (s[S.BLANKS],))
    width = s[S.HEADS] * s[S.DIMS] * s[S.SIZE]
    for n in range(len(blank)):
        ops.clear(s[S.MIXED] + blank[n] * width, width)


@njit(nogil=True, error_model="numpy")
def _join(
    s: Any, first: int, end: int, added: int, weight: int, epsilon: float, factor: float, tap: int, norm: int,
    norm_epsilon: float, out: int,
) -> None:  # fmt: skip
    """Add what a block gave to rows of the residual stream, after a norm of its own if any; norm the sum into out."""
    kind, style, hidden = s[S.KIND], s[S.STYLE], s[S.HIDDEN]
    for r in range(first, end):
        at = r * hidden * s[S.SIZE]
        if added != 0:
            if weight != 0:
                rows_of.norm(kind, style, added + at, weight, added + at, hidden, np.float32(epsilon))
            rows_of.add(kind, s[S.STATE] + at, added + at, hidden, np.float32(factor))
        if tap != 0:
            ops.copy_bytes(s[S.STATE] + at, tap + at, hidden * s[S.SIZE])
        rows_of.norm(kind, style, s[S.STATE] + at, norm, out + at, hidden, np.float32(norm_epsilon))


def _work(block: Any) -> None:
    """Run the pass; the block's one own argument is the address of the step's table."""
    a = carray(block, HEAD + 1)
    me, all_ = _ask(a[0]), _ask(a[1])
    s = carray(_integers(a[HEAD]), (STEP_COLUMNS,))
    count, rows, hidden = s[S.LAYERS], s[S.ROWS], s[S.HIDDEN]
    layers = carray(_integers(s[S.LAYER_TABLE]), (count + 1, LAYER_COLUMNS))
    floats = carray(_floats(s[S.FLOAT_TABLE]), (count + 1, FLOAT_COLUMNS))
    plans = carray(_integers(s[S.PLAN_TABLE]), (s[S.PLANS], PLAN_COLUMNS))
    ropes = carray(_integers(s[S.ROPE_TABLE]), (2 * s[S.ROPES],))
    wide = s[S.SCRATCH] + me * s[S.SCRATCH_BYTES]
    first, end = rows * me // all_, rows * (me + 1) // all_
    if me == 0:
        _places(s, plans)
    for n in range(count):
        layer, real = layers[n], floats[n]
        before = floats[n - 1 if n > 0 else 0]
        _join(s, first, end, s[S.DELTA] if n > 0 else 0, layers[n - 1 if n > 0 else 0, L.OUT_NORM],
              before[F.OUT_NORM], before[F.RESIDUAL], layer[L.TAP], layer[L.IN_NORM], real[F.IN_NORM],
              s[S.NORMED])  # fmt: skip
        _wait(s[S.BARRIER])
        _project_heads(s, layer, me, all_, wide)
        _wait(s[S.BARRIER])
        _heads(s, layer, real, ropes, me, all_)
        _wait(s[S.BARRIER])
        _attend(s, layer, real, plans[layer[L.PLAN]], me, all_, wide)
        _wait(s[S.BARRIER])
        _project(s[S.KIND], s[S.MIXED], s[S.HEADS] * s[S.DIMS], layer[L.O], layer[L.O_BIAS], s[S.DELTA], rows, hidden,
                 me, all_, wide)  # fmt: skip
        _wait(s[S.BARRIER])
        _join(s, first, end, s[S.DELTA], layer[L.ATTENTION_NORM], real[F.ATTENTION_NORM], real[F.RESIDUAL], 0,
              layer[L.MLP_NORM], real[F.MLP_NORM], s[S.NORMED])  # fmt: skip
        _wait(s[S.BARRIER])
        _project_gate(s, layer, me, all_, wide)
        _wait(s[S.BARRIER])
        _project(s[S.KIND], s[S.GATE], layer[L.INNER], layer[L.DOWN], layer[L.DOWN_BIAS], s[S.DELTA], rows, hidden,
                 me, all_, wide)  # fmt: skip
        _wait(s[S.BARRIER])
    last = count - 1
    _join(s, first, end, s[S.DELTA], layers[last, L.OUT_NORM], floats[last, F.OUT_NORM], floats[last, F.RESIDUAL],
          layers[count, L.TAP], s[S.FINAL_NORM], floats[count, F.IN_NORM], s[S.OUT])  # fmt: skip


@functools.cache
def worker() -> int:
    """Return the address of the compiled pass."""
    address: int = cfunc(WORKER, _work).address
    return address
