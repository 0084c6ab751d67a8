"""What the fused pass does between its products: norms, rotary embedding, gated activation, residual sums.

Each works on one row at an address, in the roundings of transformers' modules: what a module returns is rounded to the
model's dtype, and so is each product and sum of the rotary embedding. Sums run in one fixed order, so that a row does
not feel its neighbours.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.elements import BFLOAT16, FLOAT32, KINDS, load, rounded, store
from specdec_nn.ops.cpu.elements import floats as at
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.softmax import exp2, fold

PLAIN, ONE_PLUS = 0, 1  # styles of a norm's weight: round(x r) w, or x r (1 + w)
SILU, GELU_TANH = 0, 1

_ONE: Final = np.float32(1.0)
_TO_LOG2: Final = np.float32(-LOG2E)
_CUBE: Final = np.float32(0.044715)
_GELU: Final = np.float32(1.5957691216057308)  # 2 sqrt(2 / pi)


@intrinsic
def _squares(_: Any, kind: Any, x: Any, vectors: Any) -> Any:
    """Return the sum of squares of 16 * vectors elements, in 16 lanes that are then added by halves."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        kind, x, vectors = values
        sums = cgutils.alloca_once_value(b, simd.splat_float(0.0))

        def add(name: str) -> None:
            size = simd.size(name)
            with cgutils.for_range(b, vectors) as loop:
                at = b.mul(loop.index, simd.const(simd.LANES * size))
                value = simd.widen(b, simd.load(b, x, at, simd.storage(name), size), name)
                b.store(b.fadd(b.load(sums), b.fmul(value, value)), sums)

        simd.cases(b, kind, {index: partial(add, name) for index, name in enumerate(KINDS)})
        return simd.first(b, fold(b, b.load(sums), lambda b, x, y: b.fadd(x, y)))

    return types.float32(types.int64, types.int64, types.int64), codegen


@njit(nogil=True, error_model="numpy")
def _sum_of_squares(kind: int, x: int, count: int) -> Any:
    rest, whole = np.float32(0.0), count // simd.LANES
    for i in range(whole * simd.LANES, count):
        rest += load(kind, x, i) * load(kind, x, i)
    return _squares(kind, x, whole) + rest


@njit(nogil=True, error_model="numpy")
def norm(kind: int, style: int, x: int, weight: int, out: int, count: int, epsilon: Any) -> None:
    """Write the RMS norm of a row x [count] to `out`, which may be x; weight [count] float32, epsilon float32."""
    scale = _ONE / np.sqrt(_sum_of_squares(kind, x, count) / np.float32(count) + epsilon)
    if style == PLAIN:
        for i in range(count):
            store(kind, out, i, rounded(kind, load(kind, x, i) * scale) * at(weight)[i])
    else:
        for i in range(count):
            store(kind, out, i, load(kind, x, i) * scale * (at(weight)[i] + _ONE))


@njit(nogil=True, error_model="numpy")
def rotate(kind: int, x: int, cos: int, sin: int, half: int) -> None:
    """Turn a head x [2 half] in place by cos and sin [2 half], all of the stored type; halves are partners."""
    span = half * (4 if kind == FLOAT32 else 2)
    for i in range(half):
        low, high = load(kind, x, i), load(kind, x + span, i)
        left = rounded(kind, low * load(kind, cos, i)) - rounded(kind, high * load(kind, sin, i))
        right = rounded(kind, high * load(kind, cos + span, i)) + rounded(kind, low * load(kind, sin + span, i))
        store(kind, x, i, left)
        store(kind, x + span, i, right)


@njit(nogil=True, error_model="numpy", inline="always")
def _gate(kind: int, activation: int, x: int, factor: int, count: int) -> None:
    for i in range(count):
        value = load(kind, x, i)
        # GELU with tanh is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), SiLU is x sigmoid(x).
        inner = value if activation == SILU else (value + value * value * value * _CUBE) * _GELU
        result = rounded(kind, value / (_ONE + exp2(inner * _TO_LOG2)))
        store(kind, x, i, result * load(kind, factor, i))


@njit(nogil=True, error_model="numpy")
def gate(kind: int, activation: int, x: int, factor: int, count: int) -> None:
    """Write act(x) * factor into x [count]."""
    # LLVM takes a choice out of a short loop by itself, and out of one as long as this it does not.
    if kind == FLOAT32:
        _gate(0, activation, x, factor, count)
    elif kind == BFLOAT16:
        _gate(1, activation, x, factor, count)
    else:
        _gate(2, activation, x, factor, count)


@njit(nogil=True, error_model="numpy")
def add(kind: int, x: int, more: int, count: int, factor: Any) -> None:
    """Write x + factor * more into x [count]; factor float32."""
    for i in range(count):
        store(kind, x, i, load(kind, x, i) + rounded(kind, load(kind, more, i) * factor))
