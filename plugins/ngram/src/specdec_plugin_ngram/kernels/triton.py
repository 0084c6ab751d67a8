"""The op `ngram_match` in Triton: two launches, no wait for the device; its definition is in torch_ref."""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache

check_cache()

BLOCK = 256  # ends searched by one program
CHUNK = 1024  # partial results reduced at a time


@triton.jit
def _search(
    tokens,
    lengths,
    partial,
    stride,
    max_n,
    LATEST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the best key of BLOCK ends of one row: (matched ids, rank of the end) in the halves of an int64."""
    row, block = tl.program_id(0), tl.program_id(1)
    n = tl.load(lengths + row).to(tl.int32)
    ids = tokens + row.to(tl.int64) * stride
    ends = 1 + block * BLOCK + tl.arange(0, BLOCK)
    alive = ends < n
    matched = tl.zeros([BLOCK], dtype=tl.int32)
    back = 0
    going = tl.max(alive.to(tl.int32), axis=0)
    while going > 0:
        # An end that is alive after `back` ids is at least `back`, and below n, so n - 1 - back is inside the row.
        suffix_id = tl.load(ids + (n - 1 - back))
        alive = alive & (ends > back)
        alive = alive & (tl.load(ids + (ends - 1 - back), mask=alive, other=0) == suffix_id)
        matched += alive.to(tl.int32)
        back += 1
        going = tl.where(back < max_n, tl.max(alive.to(tl.int32), axis=0), 0)
    rank = ends if LATEST else 0x7FFFFFFF - ends
    key = (matched.to(tl.int64) << 32) | rank.to(tl.int64)
    tl.store(partial + row * tl.num_programs(1) + block, tl.max(key, axis=0))


@triton.jit
def _copy(
    tokens,
    lengths,
    partial,
    drafts,
    stride,
    blocks,
    min_n,
    k,
    LATEST: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Reduce one row's keys and write its draft; WIDTH is a power of two, at least k."""
    row = tl.program_id(0)
    n = tl.load(lengths + row).to(tl.int32)
    lanes = tl.arange(0, CHUNK)
    keys = tl.zeros([CHUNK], dtype=tl.int64)
    for first in range(0, blocks, CHUNK):
        at = first + lanes
        keys = tl.maximum(keys, tl.load(partial + row * blocks + at, mask=at < blocks, other=0))
    key = tl.max(keys, axis=0)
    rank = (key & 0x7FFFFFFF).to(tl.int32)
    end = rank if LATEST else 0x7FFFFFFF - rank
    columns = tl.arange(0, WIDTH)
    stop = tl.where((key >> 32) >= min_n, n, 0)  # too short a match leaves nothing to copy
    found = (end + columns < stop) & (columns < k)
    ids = tl.load(tokens + row.to(tl.int64) * stride + end + columns, mask=found, other=-1)
    tl.store(drafts + row * k + columns, ids, mask=columns < k)


def ngram_match(tokens: Tensor, lengths: Tensor, min_n: int, max_n: int, k: int, latest: bool = False) -> Tensor:
    """Return drafts [B, k] of tokens [B, L] and lengths [B], with -1 where there is none; rows may be strided."""
    rows, width = tokens.shape
    drafts = tokens.new_full((rows, k), -1)
    if rows == 0 or width < 2 or k == 0:
        return drafts
    if tokens.stride(1) != 1:
        tokens = tokens.contiguous()
    blocks = triton.cdiv(width - 1, BLOCK)
    partial = torch.empty((rows, blocks), dtype=torch.int64, device=tokens.device)
    stride = tokens.stride(0)
    _search[(rows, blocks)](tokens, lengths, partial, stride, max_n, LATEST=latest, BLOCK=BLOCK)
    _copy[(rows,)](
        tokens,
        lengths,
        partial,
        drafts,
        stride,
        blocks,
        min_n,
        k,
        LATEST=latest,
        CHUNK=CHUNK,
        WIDTH=triton.next_power_of_2(k),
    )
    return drafts


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    types = {"*i32": "tokens", "*i64": "lengths partial"}
    copied = {"*i32": "tokens drafts", "*i64": "lengths partial"}
    return [
        *(PtxCase(_search, types, {"LATEST": latest, "BLOCK": BLOCK}, label=str(latest)) for latest in (False, True)),
        PtxCase(_copy, copied, {"LATEST": False, "CHUNK": CHUNK, "WIDTH": 8}),
    ]
