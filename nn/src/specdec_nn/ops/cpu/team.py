"""Runs a compiled worker on each of torch's threads; it does not know what the worker does.

On Linux these are the OpenMP threads that torch has already: numba's own loops wake a second set of threads and cost
5 us more a call, a sixth of a small linear layer. Elsewhere numba's threads take their place.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from specdec_nn.ops.cpu.jit import njit
from specdec_nn.turns import one_at_a_time

WORKER: Final = types.void(types.CPointer(types.int64))  # signature: a block of HEAD + own arguments
HEAD: Final = 4  # addresses of functions for thread number and count, or zeros and then these numbers themselves
Runner = Callable[..., None]  # run(address of the worker, *own arguments), integers all; returns when all are done


@intrinsic
def _call(_: Any, function: Any, argument: Any) -> Any:
    """Call void f(void *) at an address."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        b.call(b.inttoptr(values[0], kind.as_pointer()), [b.inttoptr(values[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _ask(_: Any, function: Any) -> Any:
    """Call int f(void) at an address."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        return b.sext(b.call(b.inttoptr(values[0], kind.as_pointer()), []), ir.IntType(64))

    return types.int64(types.int64), codegen


@njit(nogil=True)
def share(block: Any, count: int) -> tuple[int, int]:
    """Return the range of `count` things that the calling thread is to do; `block` is the worker's, as an array."""
    thread, threads = block[2], block[3]
    if block[0] != 0:
        thread, threads = _ask(block[0]), _ask(block[1])
    return count * thread // threads, count * (thread + 1) // threads


@one_at_a_time
@njit(parallel=True, nogil=True)
def _loop(worker: int, blocks: Any) -> None:
    for thread in prange(len(blocks)):
        _call(worker, blocks[thread].ctypes.data)


def run_by_numba(worker: int, *arguments: int) -> None:
    """Run the worker on numba's threads."""
    threads = torch.get_num_threads()
    _loop(worker, np.array([[0, 0, thread, threads, *arguments] for thread in range(threads)], np.int64))


def by_openmp(library: str = "libgomp.so.1") -> Runner | None:
    """Return a runner on torch's threads; None where there is no GNU OpenMP."""
    try:
        # By this name the loader finds the copy that torch has loaded.
        openmp = ctypes.CDLL(library)
        parallel, number, count = openmp.GOMP_parallel, openmp.omp_get_thread_num, openmp.omp_get_num_threads
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    head = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (number, count)] + [0, 0]

    def run(worker: int, *arguments: int) -> None:
        block = (ctypes.c_int64 * (HEAD + len(arguments)))(*head, *arguments)
        parallel(worker, block, torch.get_num_threads(), 0)

    return run


RUN: Final[Runner] = by_openmp() or run_by_numba
