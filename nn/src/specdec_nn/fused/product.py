"""How the fused pass calls the linear op's compiled tiles; the only place that knows their form."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Final

import numpy as np
import torch

from specdec_nn.ops.attention import simd as ops
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.linear import numba as linear
from specdec_nn.ops.linear.numba import BLOCK, ROW_CHUNK, TILE

FLOAT32, BFLOAT16 = ops.KINDS.index("float32"), ops.KINDS.index("bfloat16")
HAS_HALF: Final = "float16" in ops.KINDS


def most_rows(dtype: torch.dtype) -> int:
    """Return the most rows for which a row of a product does not feel its neighbours."""
    return linear.ROW_EXACT_MAX if linear._NATIVE_BF16 and dtype is torch.bfloat16 else 1 << 30


def scratch_bytes(rows: int, inputs: int) -> int:
    """Return the bytes of one thread that `widened` needs for products of up to so many inputs."""
    return min(rows, ROW_CHUNK) * (inputs + 1) * 4


@njit(nogil=True, error_model="numpy")
def widened(kind: int, x: int, count: int, inputs: int, wide: int) -> int:
    """Return the address of float32 rows as the linear op's tiles want them, at `wide` unless they are so already."""
    if kind == FLOAT32:
        return x
    stride = inputs + inputs % 2 if kind == BFLOAT16 else inputs
    for r in range(count):
        ops.widen(kind, x + r * inputs * 2, wide + r * stride * 4, inputs, np.float32(1.0))
        if stride > inputs:
            ops.clear(wide + (r * stride + inputs) * 4, 4)
    return wide


@njit(nogil=True, error_model="numpy")
def tile(kind: int, wide: int, inputs: int, weight: int, bias: int, out: int, rows: int, outputs: int, t: int) -> None:
    """Write tile t of the outputs of a linear layer for all rows."""
    bias_at, room = bias + t * TILE * 4, outputs - t * TILE
    for r in range(0, rows, BLOCK):
        count = min(BLOCK, rows - r)
        if kind == BFLOAT16:
            groups = (inputs + 1) // 2
            linear._tile_bf16(count, wide + r * groups * 8, 2 * groups, groups, weight + t * TILE * groups * 4,
                                bias_at, out + (r * outputs + t * TILE) * 2, outputs, room)  # fmt: skip
        elif kind == FLOAT32:
            linear._tile_f32(count, wide + r * inputs * 4, inputs, inputs, weight + t * TILE * inputs * 4,
                               bias_at, out + (r * outputs + t * TILE) * 4, outputs, room)  # fmt: skip
        elif HAS_HALF:
            linear._tile_f16(count, wide + r * inputs * 4, inputs, inputs, weight + t * TILE * inputs * 2,
                               bias_at, out + (r * outputs + t * TILE) * 2, outputs, room)  # fmt: skip


@njit(nogil=True, error_model="numpy")
def tiles(outputs: int) -> int:
    """Return the number of tiles of a linear layer."""
    return (outputs + TILE - 1) // TILE
