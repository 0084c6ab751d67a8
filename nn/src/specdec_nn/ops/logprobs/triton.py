"""The logprobs op on a GPU: one read of the logits; under TRITON_INTERPRET=1 the same source runs on a CPU."""

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
from specdec_nn.ops.top_ids.triton import normaliser, weight_of
from specdec_nn.ops.triton_cache import check_cache

check_cache()

STRETCH: Final = 4096  # ids a program of the first stage
WARPS: Final = 8

_NEVER = tl.constexpr(float("-inf"))
_BEYOND = tl.constexpr(float("inf"))


@triton.jit
def rank_part(logits, stride, vocabulary, chosen, tops, sums, counts, SIZE: tl.constexpr):
    """Fill in how many ids of one stretch of one row come before the chosen one, and the stretch's normaliser."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * SIZE + tl.arange(0, SIZE)
    x = tl.load(logits + row * stride + ids, mask=ids < vocabulary, other=_NEVER).to(tl.float32)
    x = tl.where(x != x, _BEYOND, x)
    top = tl.max(x, 0)
    own_id = tl.load(chosen + row)
    own = tl.load(logits + row * stride + own_id).to(tl.float32)
    before = ((x > own) | ((x == own) & (ids < own_id))) & (ids < vocabulary)
    place = row * tl.num_programs(1) + part
    tl.store(tops + place, top)
    tl.store(sums + place, weight_of(x, top))
    tl.store(counts + place, tl.sum(before.to(tl.int32), 0))


@triton.jit
def rank_join(logits, stride, chosen, tops, sums, counts, parts, values, ranks, PARTS: tl.constexpr):
    """Fill in the log-probability and the rank of one row."""
    row = tl.program_id(0).to(tl.int64)
    largest, total = normaliser(tops, sums, row, parts, PARTS)
    own = tl.load(logits + row * stride + tl.load(chosen + row)).to(tl.float32)
    at = tl.arange(0, PARTS)
    count = tl.load(counts + row * parts + at, mask=at < parts, other=0)
    total = tl.where(largest < _BEYOND, total, 0.0)
    value = tl.where(largest < _BEYOND, own - total, float("nan"))
    tl.store(values + row, value)
    tl.store(ranks + row, tl.sum(count, 0).to(tl.int64) + 1)


def logprobs(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability and the rank of an id of each row; see `logprobs_reference`."""
    logits = logits.detach()
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    (rows, vocabulary), device = logits.shape, logits.device
    values = torch.empty(rows, dtype=torch.float32, device=device)
    ranks = torch.empty(rows, dtype=torch.int64, device=device)
    if not rows:
        return values, ranks
    parts = triton.cdiv(vocabulary, STRETCH)
    tops, sums = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
    counts = torch.empty(rows, parts, dtype=torch.int32, device=device)
    chosen = chosen.contiguous()
    given = logits, logits.stride(0)
    rank_part[(rows, parts)](*given, vocabulary, chosen, tops, sums, counts, SIZE=STRETCH, num_warps=WARPS)
    size = triton.next_power_of_2(parts)
    rank_join[(rows,)](*given, chosen, tops, sums, counts, parts, values, ranks, PARTS=size)
    return values, ranks


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    part = {"*bf16": "logits", "*fp32": "tops sums", "*i64": "chosen", "*i32": "counts"}
    join = {"*bf16": "logits", "*fp32": "tops sums values", "*i64": "chosen ranks", "*i32": "counts"}
    return [
        PtxCase(rank_part, part, {"SIZE": STRETCH}, {"num_warps": WARPS}),
        PtxCase(rank_join, join, {"PARTS": 32}),
    ]
