"""The race op on a GPU; under TRITON_INTERPRET=1 the same source runs on a CPU.

Each program finds the winner of one stretch of one row, and torch joins the stretches.
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

from specdec_core.noise import Noise
from specdec_nn.ops.noise.triton import OPTIONS, exponential, on_device
from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache

check_cache()

STRETCH: Final = 1024  # ids a program


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
    key, position, seq = tl.load(keys + row), tl.load(positions + row), tl.load(seq_index + row)
    e = exponential(key, ids, position, seq, purpose)
    score = tl.where(p > 0, p.to(tl.float64) / e, -1.0)
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, ids, vocabulary), 0)
    place = row * tl.num_programs(1) + part
    tl.store(scores + place, best)
    tl.store(winners + place, winner)


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
        on_device(noise.keys, probs.device),
        on_device(noise.positions, probs.device),
        on_device(noise.seq_index, probs.device),
        int(purpose),
        scores,
        winners,
        SIZE=STRETCH,
        **OPTIONS,
    )
    best, _ = scores.max(1, keepdim=True)
    winner = torch.where(scores == best, winners, vocabulary).amin(1).long()
    return torch.where(best[:, 0] < 0, -1, winner)


def ptx_cases() -> list[PtxCase]:
    """Return what the kernel is compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    types = {"*fp32": "probs", "*i64": "keys positions seq_index", "*fp64": "scores", "*i32": "winners"}
    return [PtxCase(_race, types, {"SIZE": STRETCH}, OPTIONS)]
