"""Intrinsics of the running softmax: weights of a tile of scores, joining the records of two runs, the division.

A record is scratch memory at an address. Sums run in one fixed order, and every operation is spelled out, so that no
result depends on the company a row is in.
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

KEYS: Final = 64  # keys a tile: four vectors of scores
LOWEST: Final = -1e30  # stands for minus infinity, whose differences would be NaN
LOG2E: Final = 1.4426950408889634

# 2^r on [-1/2, 1/2]: minimax in relative error (2e-9 before rounding of the coefficients), highest power first.
_EXP2: Final = (
    0.00015345812158740183,
    0.001339993120947414,
    0.009618488956522791,
    0.055503287769976636,
    0.24022646890639573,
    0.6931472057372526,
    1.0,
)
_MAGIC: Final = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits


def _exp2(b: Any, x: Any) -> Any:
    """Emit 2^x of 16 lanes, for x clamped to [-126, 126]; relative error below 1e-7."""
    for bound, sign in ((-126.0, "<"), (126.0, ">")):
        limit = simd.splat_float(bound)
        x = b.select(b.fcmp_ordered(sign, x, limit), limit, x)
    shifted = b.fadd(x, simd.splat_float(_MAGIC))
    r = b.fsub(x, b.fsub(shifted, simd.splat_float(_MAGIC)))
    value = simd.splat_float(_EXP2[0])
    for coefficient in _EXP2[1:]:
        value = simd.fma(b, value, r, simd.splat_float(coefficient))
    exponent = b.add(b.shl(b.bitcast(shifted, simd.VI32), simd.splat_int(23)), simd.splat_int(0x3F800000))
    return b.fmul(value, b.bitcast(exponent, simd.VF32))


def _larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _fold(b: Any, vector: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """Emit all 16 lanes joined, by halves, in every lane of the result."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    for distance in (8, 4, 2, 1):
        order = ir.Constant(simd.VI32, [lane ^ distance for lane in range(simd.LANES)])
        vector = join(b, vector, b.shuffle_vector(vector, undefined, order))
    return vector


def _first(b: Any, vector: Any) -> Any:
    return b.extract_element(vector, ir.Constant(simd.I32, 0))


def _vectors(b: Any, base: Any, count: int) -> list[Any]:
    return [simd.load(b, base, simd.const(v * 64), simd.VF32, 4) for v in range(count)]


# The running softmax of one row and head is a record of `columns` + 32 float32, `columns` a multiple of 16: the sum of
# weighted values, 16 lanes of the sum of weights, then the largest score so far (in the first of 16 places).
RECORD: Final = 32


def _record(b: Any, state: Any, columns: Any) -> tuple[Any, Any]:
    """Return the addresses of a record's total and top."""
    total = b.add(state, b.mul(columns, simd.const(4)))
    return total, b.add(total, simd.const(64))


@intrinsic
def begin(_: Any, state: Any, columns: Any) -> Any:
    """Make a record of no keys."""

    def emit(b: Any, values: Any) -> None:
        state, columns = values
        _, top = _record(b, state, columns)
        cgutils.memset(b, b.inttoptr(state, simd.I8.as_pointer()), b.sub(top, state), 0)
        simd.store(b, ir.Constant(simd.F32, LOWEST), top, simd.const(0), 4)

    return procedure(2, emit)


@intrinsic
def soften(_: Any, scores: Any, state: Any, columns: Any, factor: Any, first: Any, end: Any) -> Any:
    """Turn scores [KEYS], in units of log 2, into weights 2^(score - top), zero outside first .. end - 1.

    Raises the top of the record, adds to its total, and writes to `factor` [1] what its sums must be multiplied by.
    """

    def emit(b: Any, values: Any) -> None:
        scores, state, columns, factor, first, end = values
        total, top = _record(b, state, columns)
        bounds = [simd.broadcast(b, b.trunc(bound, simd.I32)) for bound in (first, end)]
        lowest, zero = simd.splat_float(LOWEST), simd.splat_float(0.0)
        seen, logits = [], _vectors(b, scores, KEYS // 16)
        for v in range(len(logits)):
            lanes = ir.Constant(simd.VI32, [v * 16 + lane for lane in range(16)])
            seen.append(b.and_(b.icmp_signed(">=", lanes, bounds[0]), b.icmp_signed("<", lanes, bounds[1])))
            logits[v] = b.select(seen[v], logits[v], lowest)
        old = simd.broadcast(b, simd.load(b, top, simd.const(0), simd.F32, 4))
        peak = logits[0]
        for logit in logits[1:]:
            peak = _larger(b, peak, logit)
        peak = _larger(b, _fold(b, peak, _larger), old)
        scale = _exp2(b, b.fsub(old, peak))
        sums = b.fmul(simd.load(b, total, simd.const(0), simd.VF32, 4), scale)
        for v, logit in enumerate(logits):
            weight = b.select(seen[v], _exp2(b, b.fsub(logit, peak)), zero)
            simd.store(b, weight, scores, simd.const(v * 64), 4)
            sums = b.fadd(sums, weight)
        simd.store(b, sums, total, simd.const(0), 4)
        simd.store(b, _first(b, peak), top, simd.const(0), 4)
        simd.store(b, _first(b, scale), factor, simd.const(0), 4)

    return procedure(6, emit)


@intrinsic
def join(_: Any, state: Any, later: Any, columns: Any) -> Any:
    """Take the record of later keys into that of earlier ones; either may be of no keys."""

    def emit(b: Any, values: Any) -> None:
        state, later, columns = values
        tops = [simd.load(b, _record(b, at, columns)[1], simd.const(0), simd.F32, 4) for at in (state, later)]
        none = [b.fcmp_ordered("==", top, ir.Constant(simd.F32, LOWEST)) for top in tops]
        size = b.mul(b.add(columns, simd.const(RECORD)), simd.const(4))
        with b.if_then(b.not_(none[1])), b.if_else(none[0]) as (copy, combine):
            with copy:
                cgutils.raw_memcpy(b, *(b.inttoptr(at, simd.I8.as_pointer()) for at in (state, later)), size, 1)
            with combine:
                mine, other = (simd.broadcast(b, top) for top in tops)
                peak = _larger(b, mine, other)
                scales = [_exp2(b, b.fsub(top, peak)) for top in (mine, other)]
                vectors = b.add(b.sdiv(columns, simd.const(16)), simd.const(1))
                with cgutils.for_range(b, vectors) as loop:
                    at = b.mul(loop.index, simd.const(64))
                    parts = [simd.load(b, record, at, simd.VF32, 4) for record in (state, later)]
                    scaled = b.fmul(parts[1], scales[1])
                    simd.store(b, simd.fma(b, parts[0], scales[0], scaled), state, at, 4)
                simd.store(b, _first(b, peak), _record(b, state, columns)[1], simd.const(0), 4)

    return procedure(3, emit)


@intrinsic
def finish(_: Any, state: Any, columns: Any, sink: Any) -> Any:
    """Divide a record's sums by its total, in place; `sink` is the address of one more logit, float32, or 0."""

    def emit(b: Any, values: Any) -> None:
        state, columns, sink = values
        total, top = _record(b, state, columns)
        lanes = simd.load(b, total, simd.const(0), simd.VF32, 4)
        whole = _fold(b, lanes, lambda b, x, y: b.fadd(x, y))
        before = b.block
        with b.if_then(b.icmp_signed("!=", sink, simd.const(0))):
            logit = simd.broadcast(b, simd.load(b, sink, simd.const(0), simd.F32, 4))
            logit = b.fmul(logit, simd.splat_float(LOG2E))
            old = simd.broadcast(b, simd.load(b, top, simd.const(0), simd.F32, 4))
            peak = _larger(b, old, logit)
            mine = _exp2(b, b.fsub(old, peak))
            joined = simd.fma(b, whole, mine, _exp2(b, b.fsub(logit, peak)))
            sunk = b.block
        factor, divisor = b.phi(simd.VF32), b.phi(simd.VF32)
        for phi, with_sink, without in ((factor, mine, simd.splat_float(1.0)), (divisor, joined, whole)):
            phi.add_incoming(without, before)
            phi.add_incoming(with_sink, sunk)
        with cgutils.for_range(b, b.sdiv(columns, simd.const(16))) as loop:
            at = b.mul(loop.index, simd.const(64))
            value = b.fmul(simd.load(b, state, at, simd.VF32, 4), factor)
            simd.store(b, b.fdiv(value, divisor), state, at, 4)

    return procedure(3, emit)


@intrinsic
def cap(_: Any, scores: Any, cap: Any) -> Any:
    """Turn scores [KEYS] into log2(e) cap tanh(score / cap)."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        scores, limit = values
        limit = simd.broadcast(b, limit)
        one = simd.splat_float(1.0)
        for v, logit in enumerate(_vectors(b, scores, KEYS // 16)):
            power = _exp2(b, b.fmul(b.fdiv(logit, limit), simd.splat_float(2.0 * LOG2E)))
            tanh = b.fsub(one, b.fdiv(simd.splat_float(2.0), b.fadd(power, one)))
            simd.store(b, b.fmul(b.fmul(limit, tanh), simd.splat_float(LOG2E)), scores, simd.const(v * 64), 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen
