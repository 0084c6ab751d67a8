"""Rows of stored elements at an address, for plain numba loops: reading, rounding, converting, copying.

A kernel works in float32; memory has one of KINDS. What is done here to one element depends on that element alone, and
LLVM makes vectors of such loops without any change of bits: it may not contract or reorder what numba compiles.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.records import pointer_to

KINDS: Final = ("float32", "bfloat16", "float16") if simd.HAS_HALF else ("float32", "bfloat16")
FLOAT32: Final = 0
BFLOAT16: Final = 1
HAS_HALF: Final = simd.HAS_HALF

# An address as something to index: floats(address)[i].
floats: Final = pointer_to(types.float32)
shorts: Final = pointer_to(types.uint16)
_bytes: Final = pointer_to(types.uint8)

_HALF_WORD: Final = np.uint32(16)
_NAN: Final = np.uint32(0x7FC0)


@intrinsic
def _from_half(_: Any, bits: Any) -> Any:
    """Return the float32 of a float16 given as bits; numba has no float16 on CPUs."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.fpext(b.bitcast(values[0], simd.F16), simd.F32)

    return types.float32(types.uint16), codegen


@intrinsic
def _to_half(_: Any, x: Any) -> Any:
    """Return the bits of a float32 rounded to float16."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(b.fptrunc(values[0], simd.F16), simd.I16)

    return types.uint16(types.float32), codegen


@intrinsic
def fma(_: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z of float32, rounded once."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        kind = ir.FunctionType(simd.F32, [simd.F32] * 3)
        return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.fma.f32"), values)

    return types.float32(types.float32, types.float32, types.float32), codegen


@njit(nogil=True, error_model="numpy")
def _from_bfloat(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << _HALF_WORD).view(np.float32)


@njit(nogil=True, error_model="numpy")
def _to_bfloat(x: Any) -> Any:
    """Return the bits of a float32 rounded to nearest even; the sum would carry some NaNs over into other numbers."""
    bits = np.float32(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> _HALF_WORD) & np.uint32(1))) >> _HALF_WORD
    return np.uint16(rounded if x == x else _NAN)


@njit(nogil=True, error_model="numpy")
def load(kind: int, row: int, i: int) -> Any:
    """Return element i of a row as float32; `kind` is an index into KINDS."""
    if kind == FLOAT32:
        return floats(row)[i]
    if kind == BFLOAT16 or not HAS_HALF:
        return _from_bfloat(shorts(row)[i])
    return _from_half(shorts(row)[i])


@njit(nogil=True, error_model="numpy")
def store(kind: int, row: int, i: int, x: Any) -> None:
    """Write a float32 to element i of a row, rounded to nearest even."""
    if kind == FLOAT32:
        floats(row)[i] = x
    elif kind == BFLOAT16 or not HAS_HALF:
        shorts(row)[i] = _to_bfloat(x)
    else:
        shorts(row)[i] = _to_half(x)


@njit(nogil=True, error_model="numpy")
def rounded(kind: int, x: Any) -> Any:
    """Return a float32 rounded to the stored type."""
    if kind == FLOAT32:
        return x
    if kind == BFLOAT16 or not HAS_HALF:
        return _from_bfloat(_to_bfloat(x))
    return _from_half(_to_half(x))


@njit(nogil=True, error_model="numpy")
def widen(kind: int, source: int, target: int, count: int, factor: Any) -> None:
    """Write `count` stored elements as float32, multiplied by a float32 factor."""
    for i in range(count):
        floats(target)[i] = load(kind, source, i) * factor


@njit(nogil=True, error_model="numpy")
def narrow(kind: int, source: int, target: int, count: int) -> None:
    """Write `count` float32 as stored elements."""
    for i in range(count):
        store(kind, target, i, floats(source)[i])


@njit(nogil=True, error_model="numpy")
def copy_bytes(source: int, target: int, count: int) -> None:
    """Copy `count` bytes between places that do not overlap."""
    for i in range(count):
        _bytes(target)[i] = _bytes(source)[i]


@njit(nogil=True, error_model="numpy")
def clear(target: int, count: int) -> None:
    """Set `count` bytes to zero."""
    for i in range(count):
        _bytes(target)[i] = np.uint8(0)
