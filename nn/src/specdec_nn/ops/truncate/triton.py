"""The truncate op on a GPU; under TRITON_INTERPRET=1 the same source runs on a CPU.

One program a row. A float32 without negative zeros has a key, a whole number in the same order; the key at which
enough ids, or enough weight, are reached is found bit by bit, each bit by one pass over the row in the cache.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_nn.device_copies import all_to_device
from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache
from specdec_nn.ops.truncate.reference import (
    EXP_COEFFICIENTS,
    LEAST,
    LN2_HIGH,
    LN2_LOW,
    MANTISSA_BITS,
    ROUNDER,
    WEIGHT_BITS,
    Truncation,
)

check_cache()

MOST: Final = 4096  # ids a program looks at together
OPTIONS: Final = {"enable_fp_fusion": False, "num_warps": 8}  # of the compiler

_LOG2E, _ROUNDER, _HIGH, _LOW, _LEAST = (tl.constexpr(x) for x in (LOG2E, ROUNDER, LN2_HIGH, LN2_LOW, LEAST))
_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7 = (tl.constexpr(c) for c in EXP_COEFFICIENTS)
_SCALE = tl.constexpr(2.0**MANTISSA_BITS)
_LIFT = tl.constexpr(WEIGHT_BITS - MANTISSA_BITS)
_BITS = tl.constexpr(32)
_NEVER = tl.constexpr(float("-inf"))
_BEYOND = tl.constexpr(float("inf"))


@triton.jit
def _weight(distance):
    """Return the weights of a block of distances to the largest logit, as the definition does."""
    d = tl.maximum(distance, _LEAST)
    n = (d * _LOG2E + _ROUNDER) - _ROUNDER
    r = (d - n * _HIGH) - n * _LOW
    series = r * 0.0 + _E0
    series = series * r + _E1
    series = series * r + _E2
    series = series * r + _E3
    series = series * r + _E4
    series = series * r + _E5
    series = series * r + _E6
    series = series * r + _E7
    mantissa = (series * _SCALE).to(tl.int64)
    return (mantissa << _LIFT) >> tl.minimum((0.0 - n).to(tl.int64), 63)


@triton.jit
def _scaled(logits, ids, vocabulary, temperature):
    """Return the scaled logits of a block of ids, -inf beyond the vocabulary."""
    x = tl.load(logits + ids, mask=ids < vocabulary, other=_NEVER)
    return tl.div_rn(x, temperature + tl.zeros_like(x)) + 0.0


@triton.jit
def _key(y):
    """Return keys, int64 in [0, 2^32), in the order of a block of logits."""
    bits = y.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000


@triton.jit
def _largest(logits, vocabulary, temperature, SIZE: tl.constexpr):
    top = tl.full([SIZE], _NEVER, tl.float32)
    for start in range(0, vocabulary, SIZE):
        top = tl.maximum(top, _scaled(logits, start + tl.arange(0, SIZE), vocabulary, temperature))
    return tl.max(top, 0)


@triton.jit
def _count(logits, vocabulary, temperature, least, SIZE: tl.constexpr):
    """Return how many ids have a key of at least `least`."""
    count = tl.zeros([SIZE], tl.int32)
    for start in range(0, vocabulary, SIZE):
        ids = start + tl.arange(0, SIZE)
        y = _scaled(logits, ids, vocabulary, temperature)
        count += ((_key(y) >= least) & (ids < vocabulary)).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _mass(logits, vocabulary, temperature, largest, floor, least, SIZE: tl.constexpr):
    """Return the weight of the ids with a key of at least `least` that min-p keeps."""
    mass = tl.zeros([SIZE], tl.int64)
    for start in range(0, vocabulary, SIZE):
        y = _scaled(logits, start + tl.arange(0, SIZE), vocabulary, temperature)
        kept = (_key(y) >= least) & (y - largest >= floor)
        mass += tl.where(kept, _weight(y - largest), 0)
    return tl.sum(mass, 0)


@triton.jit(do_not_specialize=["vocabulary"])
def _truncate(logits, stride, vocabulary, temperatures, floors, top_k, top_p, out, SIZE: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    out += row.to(tl.int64) * vocabulary
    temperature, floor = tl.load(temperatures + row), tl.load(floors + row)
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    largest = _largest(logits, vocabulary, temperature, SIZE)
    sound = (largest > _NEVER) & (largest < _BEYOND)
    cut = k * 0  # the least key that stays
    stay = cut + vocabulary  # how many of the ids with that key stay
    if sound & (k > 0) & (k < vocabulary):
        for step in range(_BITS):
            least = cut + (cut * 0 + 1 << (_BITS - 1 - step))
            if _count(logits, vocabulary, temperature, least, SIZE) >= k:
                cut = least
    if sound & (p < 1.0):
        total = _mass(logits, vocabulary, temperature, largest, floor, cut, SIZE)
        wanted = tl.ceil(p * total.to(tl.float64)).to(tl.int64)
        wanted = tl.minimum(tl.maximum(wanted, 1), total)
        lowest = cut
        cut = cut * 0
        for step in range(_BITS):
            least = cut + (cut * 0 + 1 << (_BITS - 1 - step))
            if _mass(logits, vocabulary, temperature, largest, floor, tl.maximum(least, lowest), SIZE) >= wanted:
                cut = least
        above = _mass(logits, vocabulary, temperature, largest, floor, cut + 1, SIZE)
        bits = (cut - 0x80000000).to(tl.int32)
        weight = _weight((bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True) - largest)
        stay = (wanted - above + weight - 1) // weight
    seen = stay * 0
    for start in range(0, vocabulary, SIZE):
        ids = start + tl.arange(0, SIZE)
        y = _scaled(logits, ids, vocabulary, temperature)
        key = _key(y)
        equal = ((key == cut) & (ids < vocabulary)).to(tl.int64)
        rank = seen + tl.cumsum(equal, 0) - equal
        kept = (y - largest >= floor) & ((key > cut) | ((key == cut) & (rank < stay)))
        tl.store(out + ids, tl.where(kept | (sound == 0), y, _NEVER), mask=ids < vocabulary)
        seen += tl.sum(equal, 0)


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """Return scaled logits [R, V] float32, -inf where truncated; see `truncate_reference` for arguments and meaning."""
    logits = logits.detach().float().contiguous()
    rows, vocabulary = logits.shape
    out = torch.empty_like(logits)
    parameters = (truncation.temperature, truncation.floor, truncation.top_k, truncation.top_p)
    _truncate[(rows,)](
        logits,
        logits.stride(0),
        vocabulary,
        *all_to_device(parameters, logits.device),
        out,
        SIZE=min(MOST, triton.next_power_of_2(vocabulary)),
        **OPTIONS,
    )
    return out


def ptx_cases() -> list[PtxCase]:
    """Return what the kernel is compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    types = {"*fp32": "logits temperatures floors out", "*i64": "top_k", "*fp64": "top_p"}
    return [PtxCase(_truncate, types, {"SIZE": MOST}, OPTIONS)]
