"""The top_ids op on a CPU: stretches without a large logit are passed over; all else is done in vectors."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import prange
from numba.extending import intrinsic
from torch import Tensor

from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.softmax import emit_exp2, exp2
from specdec_nn.ops.top_ids.reference import top_ids_reference
from specdec_nn.turns import one_at_a_time

STRETCH: Final = 64  # logits that are passed over together where none of them is among the largest
BLOCK: Final = 64  # logits whose weights are summed at a time
_MAGNITUDE: Final = np.int32(0x7FFFFFFF)  # bits of a float32 but its sign; turned over below 0, bits are in order
_SMALLEST, _LARGEST = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
_INFINITE: Final = np.int32(0x7F800000)  # ordered bits of +inf; those of NaN are above it
_LEAST_KEY: Final = np.int32(-0x7F800001)  # and of -inf; those of NaN with a sign are below it
_NEVER: Final = np.float32(-np.inf)
_LOG2E: Final = np.float32(LOG2E)


@intrinsic
def _weights(_: Any, logits: Any, blocks: Any, lanes: Any) -> Any:
    """Add e^(logit - top) of `blocks` blocks of BLOCK logits at an address up, at least one.

    `lanes` is the address of 16 float32: the first is `top`, and all are the sums afterwards.
    """

    def emit(b: Any, values: Any) -> None:
        at, blocks, lanes = values
        top = simd.broadcast(b, simd.load(b, lanes, simd.const(0), simd.F32, 4))
        scale = simd.splat_float(LOG2E)

        def add(index: Any, sums: list[Any]) -> list[Any]:
            place = b.add(at, b.mul(index, simd.const(4 * BLOCK)))
            found = []
            for v, total in enumerate(sums):
                logit = simd.load(b, place, simd.const(4 * simd.LANES * v), simd.VF32, 4)
                found.append(b.fadd(total, emit_exp2(b, b.fmul(b.fsub(logit, top), scale))))
            return found

        one, two, three, four = simd.counted(b, blocks, [simd.splat_float(0.0)] * (BLOCK // simd.LANES), add)
        simd.store(b, b.fadd(b.fadd(one, two), b.fadd(three, four)), lanes, simd.const(0), 4)

    return simd.procedure(3, emit)


@njit(nogil=True)
def _total(logits: Any, top: Any) -> Any:
    """Return the sum of e^(logit - top)."""
    blocks, total = len(logits) // BLOCK, 0.0
    if blocks > 0:
        lanes = np.empty(simd.LANES, np.float32)
        lanes[0] = top
        _weights(logits.ctypes.data, blocks, lanes.ctypes.data)
        for lane in lanes:
            total += lane
    for i in range(blocks * BLOCK, len(logits)):
        total += exp2((logits[i] - top) * _LOG2E)
    return total


@njit(nogil=True)
def _maxima(keys: Any, maxima: Any) -> Any:
    """Fill the largest ordered bits of each stretch, and return the smallest of all; `keys` are bits as they lie."""
    lowest = _LARGEST
    for s in range(len(maxima)):
        stretch, largest, least = keys[s * STRETCH : (s + 1) * STRETCH], _SMALLEST, _LARGEST
        for i in range(len(stretch)):
            key = np.int32(stretch[i] ^ ((stretch[i] >> np.int32(31)) & _MAGNITUDE))
            largest, least = max(largest, key), min(least, key)
        maxima[s], lowest = largest, min(lowest, least)
    return lowest


@njit(nogil=True)
def _nth_largest(maxima: Any, n: int) -> Any:
    """Return the n-th largest of some numbers; where there are fewer, the smallest that there can be."""
    best = np.full(n, _SMALLEST, np.int32)
    for value in maxima:
        if value > best[n - 1]:
            at = n - 1
            while at > 0 and best[at - 1] < value:
                best[at] = best[at - 1]
                at -= 1
            best[at] = value
    return best[n - 1]


@njit(nogil=True)
def _row(logits: Any, keys: Any, n: int, ids: Any, values: Any) -> None:
    """Fill one row: the n largest logits, the lowest id of equal ones first, as log-probabilities.

    n stretches hold a logit that is at least the n-th largest of what is largest in each: no others are looked at.
    """
    maxima = np.empty((len(logits) + STRETCH - 1) // STRETCH, np.int32)
    lowest = _maxima(keys, maxima)
    least = _nth_largest(maxima, n)
    found, low = 0, _NEVER
    for s in range(len(maxima)):
        if maxima[s] < least:
            continue
        for i in range(s * STRETCH, min((s + 1) * STRETCH, len(logits))):
            value = logits[i]
            if value > low:
                at = min(found, n - 1)
                while at > 0 and values[at - 1] < value:
                    values[at], ids[at] = values[at - 1], ids[at - 1]
                    at -= 1
                values[at], ids[at] = value, i
                found = min(found + 1, n)
                low = values[n - 1] if found == n else _NEVER
    broken = lowest < _LEAST_KEY or maxima.max() >= _INFINITE  # a NaN, or an infinite logit
    if broken or not found:  # no distribution
        ids[:], values[:] = -1, _NEVER
        return
    norm = values[0] + np.float32(np.log(_total(logits, values[0])))
    for i in range(found):
        values[i] -= norm


@one_at_a_time
@njit(parallel=True, nogil=True)
def _rows(logits: Any, n: int, ids: Any, values: Any) -> None:
    for r in prange(len(logits)):
        own, best = np.full(n, -1, np.int32), np.full(n, _NEVER, np.float32)
        _row(logits[r], logits[r].view(np.int32), n, own, best)
        ids[r], values[r] = own, best


def top_ids(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n most likely ids of each row and their log-probabilities; see `top_ids_reference`."""
    if logits.device.type != "cpu" or not simd.HAS_FMA:
        return top_ids_reference(logits, n)
    rows = logits.float().contiguous().numpy()
    ids, values = np.empty((len(rows), n), np.int32), np.empty((len(rows), n), np.float32)
    if len(rows):
        _rows(rows, n, ids, values)
    return torch.from_numpy(ids), torch.from_numpy(values)
