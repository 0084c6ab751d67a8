"""Reading and writing numbers by address, for compiled code, and how code is compiled; knows no layout.

Functions that pass arrays to each other make numba count references and copy seven numbers an array, which costs more
than the few accesses that each of them does. So the functions of a forest pass addresses, and read and write here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from specdec_nn.ops.cpu.jit import Jit

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_Function = TypeVar("_Function", bound=Callable[..., Any])

njit = Jit("specdec_plugin_suffix.kernels").njit


def compiled(function: _Function) -> _Function:
    """Compile a function for the types that it is called with, without the interpreter's lock."""
    made: _Function = njit(nogil=True)(function)
    return made


def _place(builder: Any, values: Any, element: Any) -> Any:
    """Return a pointer to number values[1] of the array at address values[0]."""
    return builder.gep(builder.inttoptr(values[0], element.as_pointer()), [values[1]])


def _get(_: Any, address: Any, index: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.sext(builder.load(_place(builder, values, _I32), align=4), _I64)

    return types.int64(types.int64, types.int64), generate


def _put(_: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, __: Any, values: Any) -> Any:
        builder.store(builder.trunc(values[2], _I32), _place(builder, values, _I32), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _peek(_: Any, address: Any, index: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.load(_place(builder, values, _I64), align=8)

    return types.int64(types.int64, types.int64), generate


def _poke(_: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, __: Any, values: Any) -> Any:
        builder.store(values[2], _place(builder, values, _I64), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _get_float(_: Any, address: Any, index: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.load(_place(builder, values, _F32), align=4)

    return types.float32(types.int64, types.int64), generate


def _put_float(_: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, __: Any, values: Any) -> Any:
        builder.store(values[2], _place(builder, values, _F32), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), generate


# (address, index) of an int32, an int64 or a float32; those that write take the value as well.
get: Callable[[int, int], int] = intrinsic(_get)
put: Callable[[int, int, int], None] = intrinsic(_put)
peek: Callable[[int, int], int] = intrinsic(_peek)
poke: Callable[[int, int, int], None] = intrinsic(_poke)
get_float: Callable[[int, int], float] = intrinsic(_get_float)
put_float: Callable[[int, int, float], None] = intrinsic(_put_float)
