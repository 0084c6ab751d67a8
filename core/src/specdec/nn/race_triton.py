"""The race op on a GPU; under TRITON_INTERPRET=1 the same source runs on a CPU.

Bit-equal to `specdec.noise.exponential` as long as the compiler contracts nothing: hence OPTIONS at the launch. Each
program finds the winner of one stretch of one row, and torch joins the stretches.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

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

STRETCH: Final = 1024  # ids a program
OPTIONS: Final = {"enable_fp_fusion": False}  # of the compiler

_M0, _M1, _W0, _W1 = (tl.constexpr(word) for word in (PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1))
_ROUNDS, _MASK, _LN2, _SQRT2 = (tl.constexpr(value) for value in (PHILOX_ROUNDS, MASK32, LN2, SQRT2))
_C19, _C17, _C15, _C13, _C11, _C9, _C7, _C5, _C3 = (tl.constexpr(value) for value in LOG_COEFFICIENTS)
_EXPONENT_OF_ONE = tl.constexpr(0x3FF0000000000000)
_MANTISSA = tl.constexpr(0x000FFFFFFFFFFFFF)


@triton.jit
def _exponential(k0, k1, c0, c1, c2, c3):
    """Return e in float64 of a block of draws; keys and counters are blocks of uint32."""
    for _ in tl.static_range(_ROUNDS):
        high0, low0 = tl.umulhi(c0, _M0), c0 * _M0
        high1, low1 = tl.umulhi(c2, _M1), c2 * _M1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _W0, k1 + _W1
    bits = (c0.to(tl.int64) * 2 + 1).to(tl.float64).to(tl.int64, bitcast=True)
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


@triton.jit(do_not_specialize=["purpose"])
def _race(
    probs,
    stride,
    vocabulary,
    keys,
    positions,
    seq_index,
    purpose,
    scores,
    winners,
    SIZE: tl.constexpr,
):
    row, part = tl.program_id(0), tl.program_id(1)
    ids = part * SIZE + tl.arange(0, SIZE)
    p = tl.load(probs + row.to(tl.int64) * stride + ids, mask=ids < vocabulary, other=0.0)
    key = tl.load(keys + row)
    c0 = ids.to(tl.uint32)
    zero = c0 ^ c0
    e = _exponential(
        zero + (key & _MASK).to(tl.uint32),
        zero + ((key >> 32) & _MASK).to(tl.uint32),
        c0,
        zero + (tl.load(positions + row) & _MASK).to(tl.uint32),
        zero + (tl.load(seq_index + row) & _MASK).to(tl.uint32),
        zero + purpose.to(tl.uint32),
    )
    score = tl.where(p > 0, p.to(tl.float64) / e, -1.0)
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, ids, vocabulary), 0)
    place = row * tl.num_programs(1) + part
    tl.store(scores + place, best)
    tl.store(winners + place, winner)


def _int64(values: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64)).to(device)


def race(probs: Tensor, noise: Noise, purpose: int) -> Tensor:
    """Return argmax over v of p(v) / e(v), [R] int64; see `race_reference` for arguments, shapes and meaning."""
    probs = probs.detach().float().contiguous()
    rows, vocabulary = probs.shape
    parts = triton.cdiv(vocabulary, STRETCH)
    scores = torch.empty(rows, parts, dtype=torch.float64, device=probs.device)
    winners = torch.empty(rows, parts, dtype=torch.int32, device=probs.device)
    _race[(rows, parts)](
        probs,
        probs.stride(0),
        vocabulary,
        _int64(noise.keys, probs.device),
        _int64(noise.positions, probs.device),
        _int64(noise.seq_index, probs.device),
        int(purpose),
        scores,
        winners,
        SIZE=STRETCH,
        **OPTIONS,
    )
    best, _ = scores.max(1, keepdim=True)
    winner = torch.where(scores == best, winners, vocabulary).amin(1).long()
    return torch.where(best[:, 0] < 0, -1, winner)
