"""The race op on a CPU: noise only for ids that have a chance, in vectors where a stretch of the row is dense."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import prange
from torch import Tensor

from specdec_core.noise import Noise
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.noise.numba import HALF, MASK, exponential
from specdec_nn.ops.race.reference import race_reference
from specdec_nn.turns import one_at_a_time

STRETCH: Final = 64  # ids looked at together
DENSE: Final = 8  # survivors of a stretch from which on the noise of all its ids, in vectors, costs less
TASK: Final = 64 * STRETCH  # ids a parallel task


@njit(nogil=True, error_model="numpy")
def race_stretch(p: Any, first: int, key: Any, position: Any, seq: Any, purpose: Any, e: Any) -> Any:
    """Return (best score, its id) of weights p [at most STRETCH], with ids from `first` on; e [STRETCH] is scratch."""
    survivors = 0
    for n in range(len(p)):
        survivors += 1 if p[n] > 0 else 0
    best, winner = 0.0, -1
    if survivors == 0:
        return best, winner
    k0, k1 = key & MASK, key >> HALF
    if survivors < DENSE:
        for n in range(len(p)):
            if p[n] > 0:
                score = np.float64(p[n]) / exponential(k0, k1, np.uint64(first + n), position, seq, purpose)
                if score > best or winner < 0:
                    best, winner = score, first + n
        return best, winner
    for n in range(len(p)):
        e[n] = np.float64(p[n]) / exponential(k0, k1, np.uint64(first + n), position, seq, purpose)
    for n in range(len(p)):
        if (e[n] > best or winner < 0) and p[n] > 0:  # in this order, since the first is rarely so and the second often
            best, winner = e[n], first + n
    return best, winner


@one_at_a_time
@njit(parallel=True, nogil=True, error_model="numpy")
def _race(probs: Any, keys: Any, positions: Any, seq_index: Any, purpose: int, winners: Any) -> None:
    rows, vocabulary = probs.shape
    tasks = (vocabulary + TASK - 1) // TASK
    scores = np.empty((rows, tasks), np.float64)
    ids = np.empty((rows, tasks), np.int64)
    for task in prange(rows * tasks):
        r, part = task // tasks, task % tasks
        e = np.empty(STRETCH, np.float64)
        position, seq = np.uint64(positions[r]) & MASK, np.uint64(seq_index[r]) & MASK
        best, winner = 0.0, -1
        for first in range(part * TASK, min((part + 1) * TASK, vocabulary), STRETCH):
            p = probs[r, first : min(first + STRETCH, vocabulary)]
            score, candidate = race_stretch(p, first, keys[r], position, seq, np.uint64(purpose) & MASK, e)
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
