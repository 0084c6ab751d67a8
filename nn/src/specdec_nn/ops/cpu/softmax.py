"""The running softmax: weights of a tile of scores, joining the records of two runs, the division.

A record is scratch memory at an address. Sums run in one fixed order, and every operation is spelled out, so that no
result depends on the company a row is in. The weights of a tile are one intrinsic, since a plain loop over so few
numbers takes five times as long; all else is plain numba.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.elements import clear, floats, fma
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.simd import procedure

KEYS: Final = 64  # keys a tile: four vectors of scores
LOWEST: Final = -1e30  # stands for minus infinity, whose differences would be NaN

# 2^r on [-1/2, 1/2]: minimax in relative error (2e-9 before rounding of the coefficients), highest power first.
EXP2: Final = (
    0.00015345812158740183,
    0.001339993120947414,
    0.009618488956522791,
    0.055503287769976636,
    0.24022646890639573,
    0.6931472057372526,
    1.0,
)
_MAGIC: Final = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits


_ONE, _TWO, _ZERO = np.float32(1.0), np.float32(2.0), np.float32(0.0)
_LOWEST, _LOG2E, _TWICE_LOG2E = np.float32(LOWEST), np.float32(LOG2E), np.float32(2.0 * LOG2E)
_BOUND, _ROUNDER = np.float32(126.0), np.float32(_MAGIC)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(coefficient) for coefficient in EXP2)
_MANTISSA_BITS, _BITS_OF_ONE = np.uint32(23), np.uint32(0x3F800000)


@njit(nogil=True, error_model="numpy")
def exp2(x: Any) -> Any:
    """Return 2^x of a float32 clamped to [-126, 126]; relative error below 1e-7."""
    x = -_BOUND if x < -_BOUND else x
    x = _BOUND if x > _BOUND else x
    shifted = x + _ROUNDER
    r = x - (shifted - _ROUNDER)
    value = fma(fma(fma(fma(fma(fma(_C0, r, _C1), r, _C2), r, _C3), r, _C4), r, _C5), r, _C6)
    return value * np.uint32((np.float32(shifted).view(np.uint32) << _MANTISSA_BITS) + _BITS_OF_ONE).view(np.float32)


def emit_exp2(b: Any, x: Any) -> Any:
    """Emit `exp2` of 16 lanes."""
    for bound, sign in ((-126.0, "<"), (126.0, ">")):
        limit = simd.splat_float(bound)
        x = b.select(b.fcmp_ordered(sign, x, limit), limit, x)
    shifted = b.fadd(x, simd.splat_float(_MAGIC))
    r = b.fsub(x, b.fsub(shifted, simd.splat_float(_MAGIC)))
    value = simd.splat_float(EXP2[0])
    for coefficient in EXP2[1:]:
        value = simd.fma(b, value, r, simd.splat_float(coefficient))
    exponent = b.add(b.shl(b.bitcast(shifted, simd.VI32), simd.splat_int(23)), simd.splat_int(0x3F800000))
    return b.fmul(value, b.bitcast(exponent, simd.VF32))


def _larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def fold(b: Any, vector: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """Emit all 16 lanes joined, by halves, in every lane of the result."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    for distance in (8, 4, 2, 1):
        order = ir.Constant(simd.VI32, [lane ^ distance for lane in range(simd.LANES)])
        vector = join(b, vector, b.shuffle_vector(vector, undefined, order))
    return vector


# The running softmax of one row and head is a record of `columns` + 32 float32, `columns` a multiple of 16: the sum of
# weighted values, 16 lanes of the sum of weights, then the largest score so far (in the first of 16 places).
RECORD: Final = 32


@njit(nogil=True, error_model="numpy")
def begin(state: int, columns: int) -> None:
    """Make a record of no keys."""
    clear(state, (columns + simd.LANES) * 4)
    floats(state)[columns + simd.LANES] = _LOWEST


@njit(nogil=True, error_model="numpy")
def soften(scores: int, state: int, columns: int, factor: int, first: int, end: int) -> None:
    """Turn scores [KEYS], in units of log 2, into weights 2^(score - top), zero outside first .. end - 1.

    Raises the top of the record, adds to its total, and writes to `factor` [1] what its sums must be multiplied by.
    """
    _soften(scores, state + columns * 4, factor, first, end)


@intrinsic
def _soften(_: Any, scores: Any, total: Any, factor: Any, first: Any, end: Any) -> Any:
    """Do `soften`; the record's top is behind its total."""

    def emit(b: Any, values: Any) -> None:
        scores, total, factor, first, end = values
        bounds = [simd.broadcast(b, b.trunc(bound, simd.I32)) for bound in (first, end)]
        lowest, zero = simd.splat_float(LOWEST), simd.splat_float(0.0)
        seen, logits = [], [simd.load(b, scores, simd.const(v * 64), simd.VF32, 4) for v in range(KEYS // 16)]
        for v in range(len(logits)):
            lanes = ir.Constant(simd.VI32, [v * 16 + lane for lane in range(16)])
            seen.append(b.and_(b.icmp_signed(">=", lanes, bounds[0]), b.icmp_signed("<", lanes, bounds[1])))
            logits[v] = b.select(seen[v], logits[v], lowest)
        old = simd.broadcast(b, simd.load(b, total, simd.const(64), simd.F32, 4))
        peak = logits[0]
        for logit in logits[1:]:
            peak = _larger(b, peak, logit)
        peak = _larger(b, fold(b, peak, _larger), old)
        scale = emit_exp2(b, b.fsub(old, peak))
        sums = b.fmul(simd.load(b, total, simd.const(0), simd.VF32, 4), scale)
        for v, logit in enumerate(logits):
            weight = b.select(seen[v], emit_exp2(b, b.fsub(logit, peak)), zero)
            simd.store(b, weight, scores, simd.const(v * 64), 4)
            sums = b.fadd(sums, weight)
        simd.store(b, sums, total, simd.const(0), 4)
        simd.store(b, simd.first(b, peak), total, simd.const(64), 4)
        simd.store(b, simd.first(b, scale), factor, simd.const(0), 4)

    return procedure(5, emit)


@njit(nogil=True, error_model="numpy")
def join(state: int, later: int, columns: int) -> None:
    """Take the record of later keys into that of earlier ones; either may be of no keys."""
    mine, other, sums = floats(state), floats(later), columns + simd.LANES
    top, later_top = mine[sums], other[sums]
    if later_top == _LOWEST:
        return
    if top == _LOWEST:
        for i in range(sums + 1):
            mine[i] = other[i]
        return
    peak = later_top if later_top > top else top
    scale, later_scale = exp2(top - peak), exp2(later_top - peak)
    for i in range(sums):
        mine[i] = fma(mine[i], scale, other[i] * later_scale)
    mine[sums] = peak


@njit(nogil=True, error_model="numpy")
def finish(state: int, columns: int, sink: int) -> None:
    """Divide a record's sums by its total, in place; `sink` is the address of one more logit, float32, or 0."""
    sums, factor = floats(state), _ONE
    divisor = _total(state + columns * 4)
    if sink != 0:
        top, logit = sums[columns + simd.LANES], floats(sink)[0] * _LOG2E
        peak = top if top > logit else logit
        factor = exp2(top - peak)
        divisor = fma(divisor, factor, exp2(logit - peak))
    for i in range(columns):
        sums[i] = sums[i] * factor / divisor


@njit(nogil=True, error_model="numpy")
def _total(lanes: int) -> Any:
    """Return the sum of 16 lanes, by halves; they are used up."""
    sums, count = floats(lanes), simd.LANES // 2
    while count > 0:
        for i in range(count):
            sums[i] += sums[i + count]
        count //= 2
    return sums[0]


@njit(nogil=True, error_model="numpy")
def cap(scores: int, limit: Any) -> None:
    """Turn scores [KEYS] into log2(e) limit tanh(score / limit), limit float32."""
    for i in range(KEYS):
        power = exp2(floats(scores)[i] / limit * _TWICE_LOG2E)
        floats(scores)[i] = limit * (_ONE - _TWO / (power + _ONE)) * _LOG2E
