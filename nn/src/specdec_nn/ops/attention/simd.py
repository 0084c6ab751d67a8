"""Intrinsics of the numba attention but for its softmax: tiles of keys and values as float32, and small products.

They work on addresses of scratch memory and know nothing of requests, pages or segments. Sums run in one fixed order
over keys and dimensions, by explicit fused multiply-adds, so that no result depends on the company a row is in.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.simd import procedure
from specdec_nn.ops.cpu.softmax import KEYS

VECTORS: Final = 4 if simd.WIDE else 1  # vectors a row of accumulators; with BLOCK rows they stay in registers
BLOCK: Final = 4

KINDS: Final = ("float32", "bfloat16", "float16") if simd.HAS_HALF else ("float32", "bfloat16")


def _per_kind(b: Any, kind: Any, emit: Callable[[str], None]) -> None:
    """Emit one case for each stored type; `kind` is an index into KINDS."""
    end = b.append_basic_block("end")
    switch = b.switch(kind, end)
    for index, name in enumerate(KINDS):
        case = b.append_basic_block(name)
        switch.add_case(simd.const(index), case)
        b.position_at_end(case)
        emit(name)
        b.branch(end)
    b.position_at_end(end)


@intrinsic
def widen(_: Any, kind: Any, source: Any, target: Any, count: Any, factor: Any) -> Any:
    """Copy `count` stored elements as float32, multiplied by a float32 factor."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        kind, source, target, count, factor = values

        def copy(name: str) -> None:
            size = simd.size(name)
            with cgutils.for_range(b, count) as loop:
                raw = simd.load(b, source, b.mul(loop.index, simd.const(size)), simd.element(name), size)
                value = b.fmul(simd.widen(b, raw, name), factor)
                simd.store(b, value, target, b.mul(loop.index, simd.const(4)), 4)

        _per_kind(b, kind, copy)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32), codegen


@intrinsic
def narrow(_: Any, kind: Any, source: Any, target: Any, count: Any) -> Any:
    """Copy `count` float32 as stored elements, rounded to nearest even."""

    def emit(b: Any, values: Any) -> None:
        kind, source, target, count = values

        def copy(name: str) -> None:
            size = simd.size(name)
            with cgutils.for_range(b, count) as loop:
                value = simd.load(b, source, b.mul(loop.index, simd.const(4)), simd.F32, 4)
                simd.store(b, simd.narrow(b, value, name), target, b.mul(loop.index, simd.const(size)), size)

        _per_kind(b, kind, copy)

    return procedure(4, emit)


@intrinsic
def copy_bytes(_: Any, source: Any, target: Any, count: Any) -> Any:
    """Copy `count` bytes."""

    def emit(b: Any, values: Any) -> None:
        source, target, count = values
        cgutils.raw_memcpy(b, *(b.inttoptr(at, simd.I8.as_pointer()) for at in (target, source)), count, 1)

    return procedure(3, emit)


@intrinsic
def clear(_: Any, target: Any, count: Any) -> Any:
    """Set `count` bytes to zero."""

    def emit(b: Any, values: Any) -> None:
        target, count = values
        cgutils.memset(b, b.inttoptr(target, simd.I8.as_pointer()), count, 0)

    return procedure(2, emit)


@intrinsic
def fill(_: Any, target: Any, count: Any, value: Any) -> Any:
    """Set `count` float32 to a value."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        target, count, value = values
        with cgutils.for_range(b, count) as loop:
            simd.store(b, value, target, b.mul(loop.index, simd.const(4)), 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


def _transposed(b: Any, rows: list[Any]) -> list[Any]:
    """Emit the transpose of 16 vectors of 16: four rounds of a perfect shuffle."""
    low = ir.Constant(simd.VI32, [n // 2 + (n % 2) * 16 for n in range(16)])
    high = ir.Constant(simd.VI32, [8 + n // 2 + (n % 2) * 16 for n in range(16)])
    for _ in range(4):
        pairs = [(rows[i], rows[i + 8]) for i in range(8)]
        rows = [b.shuffle_vector(x, y, order) for x, y in pairs for order in (low, high)]
    return rows


def _columns(b: Any, row: Any, name: str) -> list[Any]:
    """Emit the float32 vectors in 16 words of 32 bits: one dimension of 16 keys, or two of a 16-bit type."""
    if name == "float32":
        return [b.bitcast(row, simd.VF32)]
    if name == "bfloat16":
        halves = [b.shl(row, simd.splat_int(16)), b.and_(row, simd.splat_int(-65536))]
        return [b.bitcast(half, simd.VF32) for half in halves]
    halves = [b.trunc(word, simd.VI16) for word in (row, b.lshr(row, simd.splat_int(16)))]
    return [b.fpext(b.bitcast(half, simd.VF16), simd.VF32) for half in halves]


@intrinsic
def load_keys(_: Any, kind: Any, pointers: Any, target: Any, dims: Any) -> Any:
    """Write 16 keys as columns, target[d, key] float32 with KEYS columns; `pointers` [16] int64 are their addresses."""

    def emit(b: Any, values: Any) -> None:
        kind, pointers, target, dims = values
        keys = [simd.load(b, pointers, simd.const(8 * n), simd.I64, 8) for n in range(simd.LANES)]

        def copy(name: str) -> None:
            size = simd.size(name)
            words = simd.LANES * 4 // size  # dimensions in 16 words of 32 bits
            with cgutils.for_range(b, b.sdiv(dims, simd.const(words))) as loop:
                at = b.mul(loop.index, simd.const(64))
                rows = _transposed(b, [simd.load(b, key, at, simd.VI32, size) for key in keys])
                columns = [column for row in rows for column in _columns(b, row, name)]
                base = b.mul(loop.index, simd.const(words * KEYS * 4))
                for n, column in enumerate(columns):
                    simd.store(b, column, target, b.add(base, simd.const(n * KEYS * 4)), 4)
            rest = b.srem(dims, simd.const(words))
            with cgutils.for_range(b, rest) as loop:
                d = b.add(b.sub(dims, rest), loop.index)
                for n, key in enumerate(keys):
                    raw = simd.load(b, key, b.mul(d, simd.const(size)), simd.element(name), size)
                    place = b.add(b.mul(d, simd.const(KEYS * 4)), simd.const(n * 4))
                    simd.store(b, simd.widen(b, raw, name), target, place, 4)

        _per_kind(b, kind, copy)

    return procedure(4, emit)


def _emit_product(b: Any, rows: int, vectors: int, a: Any, a_row: Any, w: Any, w_row: Any, turns: Any, c: Any) -> Any:
    """Emit c[m, v] + sum over k of a[m, k] w[k, v], flat; strides in bytes, `c` flat start values."""
    a_rows = [b.add(a, b.mul(a_row, simd.const(m))) for m in range(rows)]

    def one(k: Any, sums: list[Any]) -> list[Any]:
        at = b.mul(k, w_row)
        weights = [simd.load(b, w, b.add(at, simd.const(v * 64)), simd.VF32, 4) for v in range(vectors)]
        results = []
        for m in range(rows):
            value = simd.broadcast(b, simd.load(b, a_rows[m], b.mul(k, simd.const(4)), simd.F32, 4))
            results += [simd.fma(b, value, weights[v], sums[m * vectors + v]) for v in range(vectors)]
        return results

    return simd.counted(b, turns, c, one)


def _per_rows(b: Any, rows: Any, emit: Callable[[int], None]) -> None:
    end = b.append_basic_block("end")
    switch = b.switch(rows, end)
    for count in range(1, BLOCK + 1):
        case = b.append_basic_block(f"rows{count}")
        switch.add_case(simd.const(count), case)
        b.position_at_end(case)
        emit(count)
        b.branch(end)
    b.position_at_end(end)


@intrinsic
def score(_: Any, rows: Any, q: Any, dims: Any, keys: Any, scores: Any) -> Any:
    """Write scores[m, :KEYS] = q[m, :dims] keys[:dims, :KEYS] for up to BLOCK rows."""

    def emit(b: Any, values: Any) -> None:
        rows, q, dims, keys, scores = values

        def block(count: int) -> None:
            with cgutils.for_range(b, simd.const(KEYS // (16 * VECTORS))) as group:
                left = b.mul(group.index, simd.const(VECTORS * 64))
                start = [simd.splat_float(0.0)] * (count * VECTORS)
                row = b.mul(dims, simd.const(4))
                sums = _emit_product(b, count, VECTORS, q, row, b.add(keys, left), simd.const(KEYS * 4), dims, start)
                for index, total in enumerate(sums):
                    m, v = divmod(index, VECTORS)
                    simd.store(b, total, scores, b.add(left, simd.const(m * KEYS * 4 + v * 64)), 4)

        _per_rows(b, rows, block)

    return procedure(5, emit)


def _emit_mix(b: Any, count: int, vectors: int, columns: Any, values: Any) -> None:
    """Emit `mix` for the 16 * vectors columns from byte `columns` on."""
    weights, factors, data, width, turns, out, pitch = values
    row = b.mul(width, simd.const(4))
    places = [b.add(columns, b.add(b.mul(pitch, simd.const(m)), simd.const(v * 64)))
              for m in range(count) for v in range(vectors)]  # fmt: skip
    scale = [simd.broadcast(b, simd.load(b, factors, simd.const(4 * m), simd.F32, 4)) for m in range(count)]
    start = [b.fmul(simd.load(b, out, place, simd.VF32, 4), scale[n // vectors]) for n, place in enumerate(places)]
    sums = _emit_product(b, count, vectors, weights, simd.const(KEYS * 4), b.add(data, columns), row, turns, start)
    for place, total in zip(places, sums, strict=True):
        simd.store(b, total, out, place, 4)


@intrinsic
def mix(_: Any, rows: Any, weights: Any, factors: Any, data: Any, width: Any, turns: Any, out: Any, pitch: Any) -> Any:
    """Write out[m] = factors[m] out[m] + sum over turns of weights[m, k] data[k]; rows of `width`, a 16-fold.

    Rows of weights are KEYS float32 apart, rows of out `pitch` bytes.
    """

    def emit(b: Any, values: Any) -> None:
        rows, *rest = values
        width = rest[3]

        def block(count: int) -> None:
            span = 16 * VECTORS
            groups = b.sdiv(width, simd.const(span))
            with cgutils.for_range(b, groups) as group:
                _emit_mix(b, count, VECTORS, b.mul(group.index, simd.const(4 * span)), rest)
            if VECTORS > 1:
                singles = b.sdiv(b.srem(width, simd.const(span)), simd.const(16))
                with cgutils.for_range(b, singles) as single:
                    left = b.add(b.mul(groups, simd.const(4 * span)), b.mul(single.index, simd.const(64)))
                    _emit_mix(b, count, 1, left, rest)

        _per_rows(b, rows, block)

    return procedure(8, emit)
