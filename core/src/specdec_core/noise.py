"""The counter-based noise of `coupled`: what a draw is keyed by, and its one definition in plain integers and floats.

A draw belongs to (request key, absolute position, sequence index, purpose, token id) and to nothing else, so it does
not depend on the batch, the method, the step or a restart. Bits come from Philox4x32-10 (Salmon et al. 2011) with the
64-bit request key as key and (token id, position, sequence index, purpose) as counter; word 0 is used. Every backend
(torch here in `specdec_nn.ops.race.reference`, numba, Triton) gives bit-equal noise, since it is made of integer
operations and of separately rounded float64 additions, multiplications and one division: no fused multiply-add, no
library logarithm.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

PHILOX_M0: Final = 0xD2511F53
PHILOX_M1: Final = 0xCD9E8D57
PHILOX_W0: Final = 0x9E3779B9
PHILOX_W1: Final = 0xBB67AE85
PHILOX_ROUNDS: Final = 10
MASK32: Final = 0xFFFFFFFF
MASK64: Final = 0xFFFFFFFFFFFFFFFF

# log(1 + f) = 2 s (1 + s^2/3 + s^4/5 + ...) with s = f / (2 + f); |s| <= 0.1716 for a mantissa in [sqrt(1/2), sqrt(2)),
# so that the first term left out, s^20 / 21, is below the rounding of a double.
LOG_COEFFICIENTS: Final = tuple(1.0 / n for n in (19, 17, 15, 13, 11, 9, 7, 5, 3))
LN2: Final = 0.6931471805599453
SQRT2: Final = 1.4142135623730951


# A temperature below this means the largest logit, for hosts and for drafters: dividing by less overflows, and the
# distribution is a point mass long before. The bound is vLLM's.
GREEDY_BELOW: Final = 1e-5


class Purpose(IntEnum):
    """What a draw is for; draws of different purpose are independent."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(slots=True)
class Noise:
    """Keys and places of n draws.

    keys       [n] uint64 request keys
    positions  [n] int32 absolute position of the token to be drawn (0-based, prompt included)
    seq_index  [n] int32 index of the sample among the samples of its prompt
    """

    keys: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int32]
    seq_index: npt.NDArray[np.int32]


def request_key(seed: int | None, engine_seed: int, arrival: int) -> int:
    """Return the 64-bit key of a request: its seed, or for None a hash of the engine's seed and its arrival number."""
    if seed is not None:
        return seed & MASK64
    packed = struct.pack("<QQ", engine_seed & MASK64, arrival & MASK64)
    digest = hashlib.blake2b(packed, digest_size=8, person=b"specdec-key").digest()
    return int.from_bytes(digest, "little")


def dependent_key(key: int, *parts: bytes) -> int:
    """Return a 64-bit key made of another one and of all that the drafts of a request may depend on.

    Where acceptance has noise of its own, drafts must be independent of that noise. A key that is a pseudo-random
    function of everything drafts may be made from has this property: the same drafts come with the same key, so that a
    run can be repeated, and others with noise that has nothing to do with them (`docs/losslessness.md`).
    """
    digest = hashlib.blake2b(struct.pack("<Q", key & MASK64), digest_size=8, person=b"specdec-drafts")
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of Philox4x32-10 for a 64-bit key; the definition backends are tested against."""
    k0, k1 = key & MASK32, (key >> 32) & MASK32
    c0, c1, c2, c3 = (word & MASK32 for word in counter)
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = PHILOX_M0 * c0, PHILOX_M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + PHILOX_W0) & MASK32, (k1 + PHILOX_W1) & MASK32
    return c0, c1, c2, c3


def exponential(key: int, position: int, seq_index: int, purpose: int, token: int) -> float:
    """Return e = -log(u) for one draw, u = (word 0 + 1/2) / 2^32; the definition that backends are tested against."""
    word = philox(key, (token, position, seq_index, purpose))[0]
    numerator = float(2 * word + 1)  # below 2^33, so exact in a double; u = numerator / 2^33
    mantissa, exponent = np.frexp(numerator)
    m, power = 2.0 * float(mantissa), int(exponent) - 1
    if m > SQRT2:
        m, power = 0.5 * m, power + 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = LOG_COEFFICIENTS[0]
    for coefficient in LOG_COEFFICIENTS[1:]:
        series = series * z + coefficient
    log_m = 2.0 * s + (2.0 * s) * (z * series)
    return (33.0 - power) * LN2 - log_m


def uniform(key: int, position: int, seq_index: int, purpose: int, token: int) -> float:
    """Return u in (0, 1), exact in a double, for one draw."""
    word = philox(key, (token, position, seq_index, purpose))[0]
    return float(2 * word + 1) * 2.0**-33
