"""The small products of the numba attention, and how keys become columns.

They work on addresses of scratch memory and know nothing of requests, pages or segments. Sums run in one fixed order
over keys and dimensions, by explicit fused multiply-adds, so that no result depends on the company a row is in. Loops
and addresses are plain numba; intrinsics are the product of one block, with its sums in registers, and one transpose.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from functools import partial
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.elements import FLOAT32, KINDS, clear, floats, load
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.records import pointer_to
from specdec_nn.ops.cpu.simd import procedure
from specdec_nn.ops.cpu.softmax import KEYS

VECTORS: Final = 4 if simd.WIDE else 1  # vectors a row of accumulators; with BLOCK rows they stay in registers
SPAN: Final = VECTORS * simd.LANES
BLOCK: Final = 4

_integers: Final = pointer_to(types.int64)


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
def _turn(_: Any, kind: Any, pointers: Any, at: Any, target: Any) -> Any:
    """Write 64 bytes of 16 keys, `at` bytes into each, as columns, target[d, key]."""

    def emit(b: Any, values: Any) -> None:
        kind, pointers, at, target = values

        def copy(name: str) -> None:
            keys = [simd.load(b, pointers, simd.const(8 * n), simd.I64, 8) for n in range(simd.LANES)]
            rows = _transposed(b, [simd.load(b, key, at, simd.VI32, simd.size(name)) for key in keys])
            for n, column in enumerate(column for row in rows for column in _columns(b, row, name)):
                simd.store(b, column, target, simd.const(n * KEYS * 4), 4)

        simd.cases(b, kind, {index: partial(copy, name) for index, name in enumerate(KINDS)})

    return procedure(4, emit)


@njit(nogil=True, error_model="numpy")
def load_keys(kind: int, pointers: int, target: int, dims: int) -> None:
    """Write 16 keys as columns, target[d, key] float32 with KEYS columns; `pointers` [16] int64 are their addresses."""
    words = simd.LANES if kind == FLOAT32 else 2 * simd.LANES  # dimensions in 64 bytes
    whole = dims // words
    for part in range(whole):
        _turn(kind, pointers, part * 64, target + part * words * KEYS * 4)
    for d in range(whole * words, dims):
        for n in range(simd.LANES):
            floats(target)[d * KEYS + n] = load(kind, _integers(pointers)[n], d)


def _make_product(vectors: int) -> Any:
    """Return the intrinsic that is told of in `_product`, for so many vectors."""

    def emit_rows(b: Any, count: int, values: Any) -> None:
        a, a_pitch, w, w_pitch, turns, out, out_pitch = values
        a_rows = [b.add(a, b.mul(a_pitch, simd.const(m))) for m in range(count)]
        places = [(b.mul(out_pitch, simd.const(m)), v * 64) for m in range(count) for v in range(vectors)]
        places = [b.add(row, simd.const(left)) for row, left in places]

        def one(k: Any, sums: list[Any]) -> list[Any]:
            at = b.mul(k, w_pitch)
            weights = [simd.load(b, w, b.add(at, simd.const(v * 64)), simd.VF32, 4) for v in range(vectors)]
            results = []
            for m in range(count):
                value = simd.broadcast(b, simd.load(b, a_rows[m], b.mul(k, simd.const(4)), simd.F32, 4))
                results += [simd.fma(b, value, weights[v], sums[m * vectors + v]) for v in range(vectors)]
            return results

        sums = simd.counted(b, turns, [simd.load(b, out, place, simd.VF32, 4) for place in places], one)
        for place, total in zip(places, sums, strict=True):
            simd.store(b, total, out, place, 4)

    @intrinsic
    def product(
        _: Any, rows: Any, a: Any, a_pitch: Any, w: Any, w_pitch: Any, turns: Any, out: Any, out_pitch: Any
    ) -> Any:
        def emit(b: Any, values: Any) -> None:
            count, *rest = values
            simd.cases(b, count, {n: partial(emit_rows, b, n, rest) for n in range(1, BLOCK + 1)})

        return procedure(8, emit)

    return product


# Add to out [rows, SPAN] the product of a [rows, turns] and w [turns, SPAN], all float32; pitches in bytes, rows up to
# BLOCK, turns >= 1. The second has a single vector of columns.
_product: Final = _make_product(VECTORS)
_product_of_16: Final = _make_product(1)


@njit(nogil=True, error_model="numpy")
def score(rows: int, q: int, dims: int, keys: int, scores: int) -> None:
    """Write scores[m, :KEYS] = q[m, :dims] keys[:dims, :KEYS] for up to BLOCK rows."""
    clear(scores, rows * KEYS * 4)
    for column in range(0, KEYS, SPAN):
        left = column * 4
        _product(rows, q, dims * 4, keys + left, KEYS * 4, dims, scores + left, KEYS * 4)


@njit(nogil=True, error_model="numpy")
def mix(rows: int, weights: int, factors: int, data: int, width: int, turns: int, out: int, pitch: int) -> None:
    """Write out[m] = factors[m] out[m] + sum over turns of weights[m, k] data[k]; rows of `width`, a 16-fold.

    Rows of weights are KEYS float32 apart, rows of out `pitch` bytes.
    """
    for m in range(rows):
        for column in range(width):
            floats(out + m * pitch)[column] *= floats(factors)[m]
    whole = width // SPAN * SPAN
    for column in range(0, whole, SPAN):
        left = column * 4
        _product(rows, weights, KEYS * 4, data + left, width * 4, turns, out + left, pitch)
    for column in range(whole, width, simd.LANES):
        left = column * 4
        _product_of_16(rows, weights, KEYS * 4, data + left, width * 4, turns, out + left, pitch)
