"""Memory at an address, as compiled code reads it: records of named fields, and arrays; nothing here owns memory."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

from numba import carray, from_dtype, types
from numba.extending import intrinsic

from specdec_nn.ops.cpu.jit import njit


def record_reader(dtype: Any) -> Any:
    """Return an intrinsic address -> the record of a structured dtype that lies there; its fields are attributes."""
    record = from_dtype(dtype)

    @intrinsic
    def record_at(_: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
            return b.inttoptr(values[0], context.get_value_type(signature.return_type))

        return record(types.int64), codegen

    return record_at


@intrinsic
def _int64_pointer(_: Any, address: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
        return b.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


@njit(nogil=True)
def integers(address: int, count: int) -> Any:
    """Return `count` int64 at an address as an array."""
    return carray(_int64_pointer(address), count)


def address_of(array: Any) -> int:
    """Return the address of a numpy array's data, for a part of the cost of `array.ctypes.data`."""
    found: int = array.__array_interface__["data"][0]
    return found
