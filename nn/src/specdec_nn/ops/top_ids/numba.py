"""The top_ids op on a CPU: stretches without a large logit are passed over, and weights are summed in vectors."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic
from torch import Tensor

from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.softmax import EXP2
from specdec_nn.ops.top_ids.reference import top_ids_reference
from specdec_nn.turns import one_at_a_time

STRETCH: Final = 64  # logits that are passed over together where none of them is among the largest
_EXP2: Final = tuple(np.float32(coefficient) for coefficient in EXP2)
_LOG2E: Final = np.float32(1.4426950408889634)
_ROUNDER: Final = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, in the low bits
_LEAST: Final = np.float32(-126.0)
_NEVER: Final = np.float32(-np.inf)


@intrinsic
def _bits(_: Any, x: Any) -> Any:
    """Return the bits of a float32 as an int32."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(values[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@intrinsic
def _float(_: Any, x: Any) -> Any:
    """Return the float32 with the bits of an int32."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), codegen


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _weight(stretch: Any, top: Any) -> Any:
    """Return the sum of 2^((logit - top) log2 e) over a stretch of logits, for logits of at most `top`."""
    total = np.float32(0)
    for i in range(len(stretch)):
        x = max((stretch[i] - top) * _LOG2E, _LEAST)
        shifted = x + _ROUNDER
        r = x - (shifted - _ROUNDER)
        value = _EXP2[0]
        for c in _EXP2[1:]:
            value = value * r + c
        total += value * _float((_bits(shifted) << np.int32(23)) + np.int32(0x3F800000))
    return total


@njit(nogil=True)
def _row(logits: Any, n: int, ids: Any, values: Any) -> None:
    """Fill one row: the n largest logits, the lowest id of equal ones first, as log-probabilities."""
    found, low, broken = 0, _NEVER, False
    for start in range(0, len(logits), STRETCH):
        stretch = logits[start : start + STRETCH]
        hit = False
        for i in range(len(stretch)):
            hit |= not stretch[i] <= low  # NaN, too
        if not hit:
            continue
        for i in range(len(stretch)):
            value = stretch[i]
            if value > low:
                at = min(found, n - 1)
                while at > 0 and values[at - 1] < value:
                    values[at], ids[at] = values[at - 1], ids[at - 1]
                    at -= 1
                values[at], ids[at] = value, start + i
                found = min(found + 1, n)
                low = values[n - 1] if found == n else _NEVER
            elif value != value:
                broken = True
    if broken or not found or values[0] == np.inf:  # no distribution
        ids[:], values[:] = -1, _NEVER
        return
    total = 0.0
    for start in range(0, len(logits), STRETCH):
        total += _weight(logits[start : start + STRETCH], values[0])
    norm = values[0] + np.float32(np.log(total))
    for i in range(found):
        values[i] -= norm


@one_at_a_time
@njit(parallel=True, nogil=True)
def _rows(logits: Any, n: int, ids: Any, values: Any) -> None:
    for r in prange(len(logits)):
        own, best = np.full(n, -1, np.int32), np.full(n, _NEVER, np.float32)
        _row(logits[r], n, own, best)
        ids[r], values[r] = own, best


def top_ids(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n most likely ids of each row and their log-probabilities; see `top_ids_reference`."""
    if logits.device.type != "cpu":
        return top_ids_reference(logits, n)
    rows = logits.float().contiguous().numpy()
    ids, values = np.empty((len(rows), n), np.int32), np.empty((len(rows), n), np.float32)
    if len(rows):
        _rows(rows, n, ids, values)
    return torch.from_numpy(ids), torch.from_numpy(values)
