"""Calls of compiled functions by address, so that a large one is compiled once and not again in each of its callers.

numba compiles what a function calls into the function itself, all the way down. An address is known at run time only:
callers are given it as a number, and the compiled code that they leave in the cache holds nothing of it.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from specdec_nn.ops.cpu.jit import cfunc


def outlined(function: Any) -> Any:
    """Compile a Python function of integers as a C function of int64, without a result; keep what is returned.

    Its address is the attribute `address`.
    """
    count = function.__code__.co_argcount
    return cfunc(types.void(*[types.int64] * count), function)


@intrinsic
def call(_: Any, address: Any, arguments: Any) -> Any:
    """Call a function of `outlined` by its address, with a tuple of its arguments."""

    def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * len(arguments))
        numbers = [
            context.cast(b, b.extract_value(values[1], n), of, types.int64) for n, of in enumerate(signature.args[1])
        ]
        b.call(b.inttoptr(values[0], kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen
