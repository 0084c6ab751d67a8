"""The top_ids op on a GPU, in two stages; under TRITON_INTERPRET=1 the same source runs on a CPU.

A program finds the n largest logits of one stretch of one row, with the stretch's part of the normaliser; a second
kernel finds the n largest of those. A logit and its id are one whole number, a key: the largest key is the largest
logit and of equal ones the lowest id, so that a step of a search is one maximum.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201
from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.top_ids.reference import top_ids_reference
from specdec_nn.ops.triton_cache import check_cache

check_cache()

STRETCH: Final = 4096  # ids a program of the first stage
WARPS: Final = 8
MOST: Final = 128  # ids asked for, above which whole sorts are cheaper than as many searches

_NEVER = tl.constexpr(float("-inf"))
_BEYOND = tl.constexpr(float("inf"))
_NONE = tl.constexpr(-(2**63))  # below every key
_LOW = tl.constexpr(0xFFFFFFFF)
_SIGN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def keys_of(x, ids):
    """Return keys, int64, of a block of logits without NaN and their ids."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # no negative zeros: equal logits have equal bits
    return ((bits ^ ((bits >> 31) & _SIGN)).to(tl.int64) << 32) | (ids.to(tl.int64) ^ _LOW)


@triton.jit
def logit_of(key):
    """Return the logit of a key."""
    bits = (key >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & _SIGN)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, top):
    """Return what the logits of a block add up to as exp(x - top); 0 where top is not finite."""
    sound = (top > _NEVER) & (top < _BEYOND)
    return tl.sum(tl.where(sound, tl.exp(x - tl.where(sound, top, 0.0)), 0.0), 0)


@triton.jit
def normaliser(tops, sums, row, parts, PARTS: tl.constexpr):
    """Return the largest logit of a row and the logarithm of the sum of its weights, both +inf where it has a NaN."""
    at = tl.arange(0, PARTS)
    top = tl.load(tops + row * parts + at, mask=at < parts, other=_NEVER)
    share = tl.load(sums + row * parts + at, mask=at < parts, other=0.0)
    largest = tl.max(top, 0)
    sound = (largest > _NEVER) & (largest < _BEYOND)
    gap = top - tl.where(sound, largest, 0.0)
    total = tl.sum(share * tl.exp(tl.where(sound, gap, 0.0)), 0)
    return largest, tl.where(sound, largest + tl.log(tl.where(sound, total, 1.0)), largest)


@triton.jit
def top_part(logits, stride, vocabulary, n, keys, tops, sums, SIZE: tl.constexpr):
    """Fill in the n largest keys of one stretch of one row, its largest logit and what its weights add up to."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * SIZE + tl.arange(0, SIZE)
    x = tl.load(logits + row * stride + ids, mask=ids < vocabulary, other=_NEVER).to(tl.float32)
    x = tl.where(x != x, _BEYOND, x)
    top = tl.max(x, 0)
    place = row * tl.num_programs(1) + part
    tl.store(tops + place, top)
    tl.store(sums + place, weight_of(x, top))
    left = tl.where(ids < vocabulary, keys_of(x, ids), _NONE)
    for rank in range(0, n):
        best = tl.max(left, 0)
        tl.store(keys + place * n + rank, best)
        left = tl.where(left == best, _NONE, left)


@triton.jit
def top_join(
    keys, tops, sums, base, parts, n, ids, values, WHOLE: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Fill in the n best ids of one row and base + their log-probabilities.

    WHOLE takes ids as they are; otherwise places without a finite logit, and rows without a distribution, get -1.
    """
    row = tl.program_id(0).to(tl.int64)
    largest, total = normaliser(tops, sums, row, parts, PARTS)
    at = tl.arange(0, SIZE)
    left = tl.load(keys + row * parts * n + at, mask=at < parts * n, other=_NONE)
    more = tl.load(base + row)
    total = tl.where((total > _NEVER) & (total < _BEYOND), total, 0.0)
    for rank in range(0, n):
        best = tl.max(left, 0)
        logit = logit_of(best)
        chosen = ((best & _LOW) ^ _LOW).to(tl.int32)
        there = (best > _NONE) & (logit > _NEVER) & (largest < _BEYOND)
        value = more + (logit - total)
        if not WHOLE:
            chosen = tl.where(there, chosen, -1)
            value = tl.where(there, value, _NEVER)
        tl.store(ids + row * n + rank, chosen.to(ids.dtype.element_ty))
        tl.store(values + row * n + rank, value)
        left = tl.where(left == best, _NONE, left)


def search(logits: Tensor, n: int, base: Tensor, kind: torch.dtype, *, whole: bool) -> tuple[Tensor, Tensor]:
    """Return the n best ids of rows of logits [R, V], [R, n] of the dtype `kind`, and `base` [R] + log-probabilities.

    `whole` and the order as in `top_join`.
    """
    logits = logits.detach()
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    (rows, vocabulary), device = logits.shape, logits.device
    ids = torch.empty((rows, n), dtype=kind, device=device)
    values = torch.empty((rows, n), dtype=torch.float32, device=device)
    if not rows or not n:
        return ids, values
    parts = triton.cdiv(vocabulary, STRETCH)
    keys = torch.empty(rows, parts, n, dtype=torch.int64, device=device)
    tops, sums = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
    top_part[(rows, parts)](logits, logits.stride(0), vocabulary, n, keys, tops, sums, SIZE=STRETCH, num_warps=WARPS)
    sizes = {"PARTS": triton.next_power_of_2(parts), "SIZE": triton.next_power_of_2(parts * n)}
    top_join[(rows,)](keys, tops, sums, base, parts, n, ids, values, WHOLE=whole, **sizes)
    return ids, values


def top_ids(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n most likely ids of each row and their log-probabilities; see `top_ids_reference`.

    Of equal logits the lowest ids come first.
    """
    if n > MOST:
        return top_ids_reference(logits, n)
    base = torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    return search(logits, n, base, torch.int32, whole=False)


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    part = {"*bf16": "logits", "*i64": "keys", "*fp32": "tops sums"}
    join = {"*i64": "keys", "*i32": "ids", "*fp32": "tops sums base values"}
    sizes = {"PARTS": 64, "SIZE": 1024}  # 10 of 262144 ids
    return [
        PtxCase(top_part, part, {"SIZE": STRETCH}, {"num_warps": WARPS}),
        PtxCase(top_join, join, {"WHOLE": False, **sizes}),
    ]
