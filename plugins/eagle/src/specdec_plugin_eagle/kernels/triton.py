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
from specdec_nn.ops.top_ids.triton import MOST, search
from specdec_nn.ops.triton_cache import check_cache
from specdec_plugin_eagle.kernels import torch_ref

check_cache()

COLUMNS: Final = 512  # columns of a state that one program copies


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
    if top_k > MOST:
        return torch_ref.tree_expand(logits, scores, top_k)
    return search(logits, top_k, scores.float().contiguous(), torch.int64, whole=True)


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
    gather = [{"*i64": "parents", f"*{kind}": "states features"} for kind in ("bf16", "fp32")]
    return [
        *(PtxCase(_gather, kinds, {"BLOCK": COLUMNS}, label=[*kinds][1]) for kinds in gather),
    ]
