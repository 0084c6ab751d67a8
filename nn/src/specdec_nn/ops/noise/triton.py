"""The noise of `specdec_core.noise` for Triton kernels: functions on blocks of draws, and nothing that draws.

Bit-equal to the definition as long as the compiler contracts nothing, hence OPTIONS at the launch of a kernel.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl
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
)
from specdec_nn.device_copies import to_device
from specdec_nn.ops.triton_cache import check_cache

check_cache()

OPTIONS: Final = {"enable_fp_fusion": False}  # of the compiler

_M0, _M1, _W0, _W1 = (tl.constexpr(word) for word in (PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1))
_ROUNDS, _MASK, _LN2, _SQRT2 = (tl.constexpr(value) for value in (PHILOX_ROUNDS, MASK32, LN2, SQRT2))
_C19, _C17, _C15, _C13, _C11, _C9, _C7, _C5, _C3 = (tl.constexpr(value) for value in LOG_COEFFICIENTS)
_EXPONENT_OF_ONE = tl.constexpr(0x3FF0000000000000)
_MANTISSA = tl.constexpr(0x000FFFFFFFFFFFFF)
_ULP = tl.constexpr(2.0**-33)


@triton.jit
def word(key, c0, position, seq_index, purpose):
    """Return word 0 of Philox4x32-10, uint32.

    key, position, seq_index int64 and purpose int32 are scalars or blocks, c0 a block of integers.
    """
    c0 = c0.to(tl.uint32)
    zero = c0 ^ c0
    c1 = zero + (position & _MASK).to(tl.uint32)
    c2 = zero + (seq_index & _MASK).to(tl.uint32)
    c3 = zero + purpose.to(tl.uint32)
    k0 = zero + (key & _MASK).to(tl.uint32)
    k1 = zero + ((key >> 32) & _MASK).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        high0, low0 = tl.umulhi(c0, _M0), c0 * _M0
        high1, low1 = tl.umulhi(c2, _M1), c2 * _M1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _W0, k1 + _W1
    return c0


@triton.jit
def numerator(key, c0, position, seq_index, purpose):
    """Return 2 w + 1, int64, for word w of a block of draws; arguments as for `word`."""
    return word(key, c0, position, seq_index, purpose).to(tl.int64) * 2 + 1


@triton.jit
def uniform(key, c0, position, seq_index, purpose):
    """Return u, float64 in (0, 1), of a block of draws; arguments as for `word`."""
    return numerator(key, c0, position, seq_index, purpose).to(tl.float64) * _ULP


@triton.jit
def exponential(key, c0, position, seq_index, purpose):
    """Return e, float64, of a block of draws; arguments as for `word`."""
    bits = numerator(key, c0, position, seq_index, purpose).to(tl.float64).to(tl.int64, bitcast=True)
    power = (bits >> 52) - 1023
    m = ((bits & _MANTISSA) | _EXPONENT_OF_ONE).to(tl.float64, bitcast=True)
    large = m > _SQRT2
    m = tl.where(large, 0.5 * m, m)
    power = tl.where(large, power + 1, power)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = z * 0.0 + _C19
    series = series * z + _C17
    series = series * z + _C15
    series = series * z + _C13
    series = series * z + _C11
    series = series * z + _C9
    series = series * z + _C7
    series = series * z + _C5
    series = series * z + _C3
    log_m = 2.0 * s + (2.0 * s) * (z * series)
    return (33.0 - power.to(tl.float64)) * _LN2 - log_m


def on_device(values: Any, device: torch.device) -> Tensor:
    """Return one array of a `Noise`, [n] int64 on the device."""
    return to_device(np.ascontiguousarray(values).astype(np.int64), device)


def columns_on(device: torch.device, *columns: Any) -> Tensor:
    """Return n arrays of one length as rows of one tensor, [n, length] int64 on the device, by one copy.

    For a CUDA device the copy comes from pinned memory, and the host does not wait for it.
    """
    return to_device(np.stack([np.asarray(column).astype(np.int64) for column in columns]), device)
