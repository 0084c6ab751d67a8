"""Memory at an address, as compiled code reads it: records of named fields, and arrays; nothing here owns memory."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, from_dtype, types
from numba.extending import intrinsic

from specdec_nn.ops.cpu.jit import njit


def _cast(kind: Any) -> Any:
    @intrinsic
    def cast(_: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
            return b.inttoptr(values[0], context.get_value_type(signature.return_type))

        return kind(types.int64), codegen

    return cast


def int64_fields(*names: str) -> list[tuple[str, Any]]:
    """Return fields of int64 for a structured dtype."""
    return [(name, np.int64) for name in names]


def record_reader(dtype: Any) -> Any:
    """Return an intrinsic address -> the record of a structured dtype that lies there; its fields are attributes."""
    return _cast(from_dtype(dtype))


def pointer_to(element: Any) -> Any:
    """Return an intrinsic address -> a pointer to elements of a numba type: `pointer(address)[i]` is number i."""
    return _cast(types.CPointer(element))


_int64 = pointer_to(types.int64)


@njit(nogil=True)
def integers(address: int, count: int) -> Any:
    """Return `count` int64 at an address as an array."""
    return carray(_int64(address), count)


def address_of(array: Any) -> int:
    """Return the address of a numpy array's data, for a part of the cost of `array.ctypes.data`."""
    found: int = array.__array_interface__["data"][0]
    return found
