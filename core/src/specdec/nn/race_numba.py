"""The race op on a CPU: noise only for ids that have a chance, in vectors where a stretch of the row is dense.

Bit-equal to `specdec.noise.exponential`: no fastmath, so no operation is contracted or reordered, and the split of a
double into mantissa and exponent is made of its bits. `error_model="numpy"` spares divisions a test for zero, which
would keep their loops from becoming vectors.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from torch import Tensor

from specdec.nn.race import race_reference
from specdec.noise import (
    LN2,
    LOG_COEFFICIENTS,
    MASK32,
    PHILOX_M0,
    PHILOX_M1,
    PHILOX_ROUNDS,
    PHILOX_W0,
    PHILOX_W1,
    SQRT2,
    Noise,
)

STRETCH: Final = 64  # ids looked at together
DENSE: Final = 8  # survivors of a stretch from which on the noise of all its ids, in vectors, costs less
TASK: Final = 64 * STRETCH  # ids a parallel task

_MASK: Final = np.uint64(MASK32)
_HALF: Final = np.uint64(32)
_M0, _M1, _W0, _W1 = (np.uint64(word) for word in (PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1))
_EXPONENT_OF_ONE: Final = 0x3FF0000000000000
_MANTISSA: Final = 0x000FFFFFFFFFFFFF


@intrinsic
def _bits(_: Any, x: Any) -> Any:
    """Return the bits of a float64 as int64."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(values[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _float(_: Any, x: Any) -> Any:
    """Return the float64 with the bits of an int64."""

    def codegen(_: Any, b: Any, __: Any, values: Any) -> Any:
        return b.bitcast(values[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _exponential(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """Return e of one draw; keys and counters are 32 bits in uint64."""
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    bits = _bits(np.float64(np.int64(c0 * np.uint64(2) + np.uint64(1))))
    power = (bits >> 52) - 1023
    m = _float((bits & _MANTISSA) | _EXPONENT_OF_ONE)
    large = m > SQRT2
    m = 0.5 * m if large else m
    power = power + 1 if large else power
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = LOG_COEFFICIENTS[0]
    for n in range(1, len(LOG_COEFFICIENTS)):
        series = series * z + LOG_COEFFICIENTS[n]
    log_m = 2.0 * s + (2.0 * s) * (z * series)
    return (33.0 - np.float64(power)) * LN2 - log_m


@njit(nogil=True, cache=True, error_model="numpy")
def _race_stretch(p: Any, first: int, key: Any, position: Any, seq: Any, purpose: Any, e: Any) -> Any:
    """Return (best score, its id) of p [at most STRETCH] float32, with ids from `first` on; e [STRETCH] is scratch."""
    survivors = 0
    for n in range(len(p)):
        survivors += 1 if p[n] > 0 else 0
    best, winner = 0.0, -1
    if survivors == 0:
        return best, winner
    k0, k1 = key & _MASK, key >> _HALF
    if survivors < DENSE:
        for n in range(len(p)):
            if p[n] > 0:
                score = np.float64(p[n]) / _exponential(k0, k1, np.uint64(first + n), position, seq, purpose)
                if score > best or winner < 0:
                    best, winner = score, first + n
        return best, winner
    for n in range(len(p)):
        e[n] = np.float64(p[n]) / _exponential(k0, k1, np.uint64(first + n), position, seq, purpose)
    for n in range(len(p)):
        if p[n] > 0 and (e[n] > best or winner < 0):
            best, winner = e[n], first + n
    return best, winner


@njit(parallel=True, nogil=True, cache=True, error_model="numpy")
def _race(probs: Any, keys: Any, positions: Any, seq_index: Any, purpose: int, winners: Any) -> None:
    rows, vocabulary = probs.shape
    tasks = (vocabulary + TASK - 1) // TASK
    scores = np.empty((rows, tasks), np.float64)
    ids = np.empty((rows, tasks), np.int64)
    for task in prange(rows * tasks):
        r, part = task // tasks, task % tasks
        e = np.empty(STRETCH, np.float64)
        position, seq = np.uint64(positions[r]) & _MASK, np.uint64(seq_index[r]) & _MASK
        best, winner = 0.0, -1
        for first in range(part * TASK, min((part + 1) * TASK, vocabulary), STRETCH):
            p = probs[r, first : min(first + STRETCH, vocabulary)]
            score, candidate = _race_stretch(p, first, keys[r], position, seq, np.uint64(purpose) & _MASK, e)
            # Later ids win only by a higher score, so the lowest id keeps a tie.
            if candidate >= 0 and (score > best or winner < 0):
                best, winner = score, candidate
        scores[r, part], ids[r, part] = best, winner
    for r in range(rows):
        best, winner = 0.0, -1
        for part in range(tasks):
            if ids[r, part] >= 0 and (scores[r, part] > best or winner < 0):
                best, winner = scores[r, part], ids[r, part]
        winners[r] = winner


def race(probs: Tensor, noise: Noise, purpose: int) -> Tensor:
    """Return argmax over v of p(v) / e(v), [R] int64; see `race_reference` for arguments, shapes and meaning."""
    if probs.device.type != "cpu" or probs.dtype is not torch.float32:
        return race_reference(probs, noise, purpose)
    winners = np.empty(probs.shape[0], np.int64)
    _race(
        probs.detach().contiguous().numpy(),
        np.ascontiguousarray(noise.keys, np.uint64),
        np.ascontiguousarray(noise.positions, np.int64),
        np.ascontiguousarray(noise.seq_index, np.int64),
        int(purpose),
        winners,
    )
    return torch.from_numpy(winners)
