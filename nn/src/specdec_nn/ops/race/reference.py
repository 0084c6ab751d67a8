"""The race op, argmax of p(v) / e(v), and the noise of `coupled` in torch; it does not know samplers or verifiers.

The noise is bit-equal to `specdec_core.noise.exponential`: integer Philox rounds, then float64 operations that are each
rounded on their own. Eager torch runs them as separate kernels, so nothing can be contracted into a fused multiply-add.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec_core.noise import (
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
from specdec_nn.device_copies import all_to_device


def _mul_hi_lo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and low 32 bits of a * b for 32-bit values held in int64."""
    # Halves of 16 bits keep every product below 2^49: int64 overflow is undefined on some backends.
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox_word(keys: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor) -> Tensor:
    """Return word 0 of Philox4x32-10, int64 in [0, 2^32); keys are 64 bits in int64, counters 32 bits in int64."""
    k0, k1 = keys & MASK32, (keys >> 32) & MASK32
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = _mul_hi_lo(PHILOX_M0, c0)
        high1, low1 = _mul_hi_lo(PHILOX_M1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + PHILOX_W0) & MASK32, (k1 + PHILOX_W1) & MASK32
    return c0


def exponential_of_word(word: Tensor) -> Tensor:
    """Return e = -log((word + 1/2) / 2^32) in float64 by the series of `specdec_core.noise`."""
    mantissa, exponent = torch.frexp((2 * word + 1).double())
    m, power = 2.0 * mantissa, exponent - 1
    large = m > SQRT2
    m, power = torch.where(large, 0.5 * m, m), torch.where(large, power + 1, power)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = torch.full_like(z, LOG_COEFFICIENTS[0])
    for coefficient in LOG_COEFFICIENTS[1:]:
        series = series * z + coefficient
    log_m = 2.0 * s + (2.0 * s) * (z * series)
    return (33.0 - power.double()) * LN2 - log_m


def _row_noise(noise: Noise, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, positions and sequence indices, [R] int64 each."""
    keys = np.array(noise.keys, np.uint64).view(np.int64)  # copies all three: torch takes no read-only array
    places = (np.asarray(values, np.int64) & MASK32 for values in (noise.positions, noise.seq_index))
    found_keys, positions, seq_index = all_to_device((keys, *places), device)
    return found_keys, positions, seq_index


def _words(noise: Noise, purpose: int, ids: Tensor) -> Tensor:
    """Return word 0 of Philox, [R, n] int64, for ids [n] or [R, n]."""
    keys, positions, seq_index = (column[:, None] for column in _row_noise(noise, ids.device))
    ids = ids.long().expand(len(noise.keys), -1)
    purposes = torch.full_like(ids, int(purpose))
    return philox_word(keys.expand_as(ids), ids & MASK32, positions.expand_as(ids), seq_index.expand_as(ids), purposes)


def exponential_reference(noise: Noise, purpose: int, ids: Tensor) -> Tensor:
    """Return e [R, n] float64 for ids [n], or [R, n] when each row has ids of its own; R draws places of `noise`."""
    return exponential_of_word(_words(noise, purpose, ids))


def uniform_reference(noise: Noise, purpose: int, ids: Tensor) -> Tensor:
    """Return u in (0, 1), [R, n] float64, for ids [n] or [R, n]; the definition of the op `uniform`."""
    return (2 * _words(noise, purpose, ids) + 1).double() * 2.0**-33


def race_reference(probs: Tensor, noise: Noise, purpose: int) -> Tensor:
    """Return argmax over v of p(v) / e(v), [R] int64; the definition of the op.

    probs [R, V] float32, 0 where truncated, not necessarily normalised. Only ids with p > 0 take part (a NaN does not),
    the lowest id wins a tie, and a row with no such id gives -1. The quotient is float64.
    """
    keys, positions, seq_index = _row_noise(noise, probs.device)
    rows, ids = torch.nonzero(probs > 0, as_tuple=True)
    purposes = torch.full_like(ids, int(purpose))
    e = exponential_of_word(philox_word(keys[rows], ids, positions[rows], seq_index[rows], purposes))
    scores = torch.zeros(probs.shape, dtype=torch.float64, device=probs.device)
    scores[rows, ids] = probs[rows, ids].double() / e
    # torch.argmax promises no order among equals, hence the lowest id by hand.
    none = probs.shape[1]
    order = torch.arange(none, device=probs.device)
    best = scores.amax(1, keepdim=True)
    winner = torch.where((scores == best) & (probs > 0), order, none).amin(1)
    return torch.where(winner == none, -1, winner)
