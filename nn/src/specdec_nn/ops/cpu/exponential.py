"""e^x of one float32 in a few operations that loops over vectors can hold; knows no kernel.

Compilers make no vectors of calls of the system's exp. What is here is put into the caller before it is compiled.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu.jit import njit

# 2^r on [-1/2, 1/2], minimax in relative error, highest power first; see specdec_nn.ops.cpu.softmax
_C6: Final = np.float32(0.00015345812158740183)
_C5: Final = np.float32(0.001339993120947414)
_C4: Final = np.float32(0.009618488956522791)
_C3: Final = np.float32(0.055503287769976636)
_C2: Final = np.float32(0.24022646890639573)
_C1: Final = np.float32(0.6931472057372526)
_ONE: Final = np.float32(1.0)
_LOG2E: Final = np.float32(LOG2E)
_ROUNDER: Final = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, in the low bits
_LEAST: Final = np.float32(-126.0)
_MOST: Final = np.float32(127.0)
_MANTISSA: Final = np.int32(23)  # bits
_BIAS: Final = np.int32(0x3F800000)  # bits of 1


@intrinsic
def bits_of(_: Any, x: Any) -> Any:
    """Return the bits of a float32 as an int32."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(values[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@intrinsic
def float_of(_: Any, x: Any) -> Any:
    """Return the float32 with the bits of an int32."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), codegen


@njit(nogil=True, inline="always")
def exponential(x: Any) -> Any:
    """Return e^x of a float32, to 2e-7 of itself; below e^-87 it is 2^-126, above 2^127 that."""
    power = min(max(x * _LOG2E, _LEAST), _MOST)
    shifted = power + _ROUNDER
    r = power - (shifted - _ROUNDER)
    value = ((((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r) + _C1) * r + _ONE
    return value * float_of(np.int32((bits_of(shifted) << _MANTISSA) + _BIAS))
