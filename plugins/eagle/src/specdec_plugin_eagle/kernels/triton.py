"""The ops of tree drafting in Triton, without a wait for the device; their definitions are in torch_ref."""

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

from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache

check_cache()

BLOCK: Final = 1024  # logits looked at together
COLUMNS: Final = 512  # columns of a state that one program copies


@triton.jit
def _expand(logits, scores, ids, cumulative, stride, vocabulary, top_k, BLOCK: tl.constexpr):
    """One node: its normaliser, then its children one by one, each the best of those after the one before."""
    row = tl.program_id(0)
    source = logits + row.to(tl.int64) * stride
    lane = tl.arange(0, BLOCK)
    high = tl.full((), float("-inf"), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        x = tl.load(source + first + lane, mask=first + lane < vocabulary, other=float("-inf"))
        high = tl.maximum(high, tl.max(x, 0))
    total = tl.zeros((), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        x = tl.load(source + first + lane, mask=first + lane < vocabulary, other=float("-inf"))
        total += tl.sum(tl.exp(x - high), 0)
    normaliser = high + tl.log(total)
    node = tl.load(scores + row)
    last_value = tl.full((), float("inf"), tl.float32)
    last_id = tl.full((), -1, tl.int32)
    for rank in range(0, top_k):
        best = tl.full((), float("-inf"), tl.float32)
        chosen = tl.full((), 2147483647, tl.int32)
        for first in range(0, vocabulary, BLOCK):
            at = first + lane
            x = tl.load(source + at, mask=at < vocabulary, other=float("-inf"))
            after = (x < last_value) | ((x == last_value) & (at > last_id))
            left = (at < vocabulary) & after
            value = tl.max(tl.where(left, x, float("-inf")), 0)
            index = tl.min(tl.where(left & (x == value), at, 2147483647), 0)
            # Later ids win only by a higher value, so the lowest id keeps a tie.
            better = (value > best) | ((chosen == 2147483647) & (index < chosen))
            chosen = tl.where(better, index, chosen)
            best = tl.where(better, value, best)
        tl.store(ids + row * top_k + rank, chosen.to(tl.int64))
        tl.store(cumulative + row * top_k + rank, node + (best - normaliser))
        last_value, last_id = best, chosen


@triton.jit
def _gather(states, parents, features, nodes, above, width, BLOCK: tl.constexpr):
    """One node: the features of its parent's row of the same request."""
    node = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = node // nodes * above + tl.load(parents + node)
    x = tl.load(states + row * width + column, mask=column < width)
    tl.store(features + node * width + column, x, mask=column < width)


def tree_expand(logits: Tensor, scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest children and their scores; see `torch_ref.tree_expand` for arguments and meaning."""
    nodes, vocabulary = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    ids = torch.empty((nodes, top_k), dtype=torch.int64, device=logits.device)
    cumulative = torch.empty((nodes, top_k), dtype=torch.float32, device=logits.device)
    if nodes:
        _expand[(nodes,)](
            logits, scores.contiguous(), ids, cumulative, logits.stride(0), vocabulary, top_k, BLOCK=BLOCK
        )
    return ids, cumulative


def draft_rows(states: Tensor, parents: Tensor, tokens: Tensor, starts: Tensor, depth: int) -> tuple[Tensor, ...]:
    """Return the head's input rows of one level; see `torch_ref.draft_rows` for arguments, shapes and meaning."""
    requests, above, width = states.shape
    nodes = parents.shape[1]
    features = torch.empty((requests * nodes, width), dtype=states.dtype, device=states.device)
    if len(features):
        grid = (len(features), triton.cdiv(width, COLUMNS))
        _gather[grid](states.contiguous(), parents.contiguous(), features, nodes, above, width, BLOCK=COLUMNS)
    positions = (starts[:, None] + depth).expand(tokens.shape)
    return features, tokens.flatten(), positions.flatten()


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    types = {"*fp32": "logits scores cumulative", "*i64": "ids"}
    gather = [{"*i64": "parents", f"*{kind}": "states features"} for kind in ("bf16", "fp32")]
    return [
        PtxCase(_expand, types, {"BLOCK": BLOCK}),
        *(PtxCase(_gather, kinds, {"BLOCK": COLUMNS}, label=[*kinds][1]) for kinds in gather),
    ]
