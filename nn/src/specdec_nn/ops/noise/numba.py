"""The noise of `specdec_core.noise` for numba kernels: functions to be inlined, and nothing that draws.

Bit-equal to the definition: no fastmath, so no operation is contracted or reordered, and the split of a double into
mantissa and exponent is made of its bits. Kernels compile with `error_model="numpy"`, which spares divisions a test for
zero that would keep their loops from becoming vectors.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np

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
)
from specdec_nn.ops.cpu.jit import njit

MASK: Final = np.uint64(MASK32)
HALF: Final = np.uint64(32)

_M0, _M1, _W0, _W1 = (np.uint64(word) for word in (PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1))
_EXPONENT_OF_ONE: Final = 0x3FF0000000000000
_MANTISSA: Final = 0x000FFFFFFFFFFFFF


@njit(nogil=True, error_model="numpy", inline="always")
def word(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """Return word 0 of Philox4x32-10; keys, counters and result are 32 bits in uint64."""
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & MASK, (p0 >> HALF) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + _W0) & MASK, (k1 + _W1) & MASK
    return c0


@njit(nogil=True, error_model="numpy", inline="always")
def uniform(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """Return u of one draw, float64 in (0, 1)."""
    return np.float64(np.int64(word(k0, k1, c0, c1, c2, c3) * np.uint64(2) + np.uint64(1))) * 2.0**-33


@njit(nogil=True, error_model="numpy", inline="always")
def exponential(k0: Any, k1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """Return e of one draw, float64."""
    bits = np.float64(np.int64(word(k0, k1, c0, c1, c2, c3) * np.uint64(2) + np.uint64(1))).view(np.int64)
    power = (bits >> 52) - 1023
    m = np.int64((bits & _MANTISSA) | _EXPONENT_OF_ONE).view(np.float64)
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
