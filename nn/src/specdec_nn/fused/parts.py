"""What the compiled pass is told of the layers that it runs; nothing here reads modules or makes tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_nn.ops.linear.numba import InPlace
from specdec_nn.ops.linear.reference import PackedLinear


@dataclass(slots=True, eq=False)
class Norm:
    """An RMS norm: its weight in float32 and what it adds to the mean square."""

    weight: Tensor
    epsilon: float


@dataclass(slots=True, eq=False)
class Block:
    """One layer.

    norms     by the names of `tables.NORMS`; absent where the layer has none
    products  by the names of `tables.PRODUCTS`: where the weight lies, and the PackedLinear, which keeps it alive
    inner     outputs of gate and of up
    arena     the layer's number in the KV arena
    rope      the type of layer that the rotary embedding is asked for, "" where it has one type; None: nothing turns
    scaling, softcap, window, sinks    of its attention; window None: a row sees all keys
    residual  factor of what is added to the residual stream
    """

    norms: dict[str, Norm]
    products: dict[str, tuple[PackedLinear, InPlace]]
    inner: int
    arena: int
    rope: str | None
    scaling: float
    softcap: float | None
    window: int | None
    sinks: Tensor | None
    residual: float


@dataclass(slots=True, eq=False, frozen=True)
class Shape:
    """What all layers of a pass have in common.

    hidden  width of the residual stream
    inputs  width of what queries, keys and values are made of
    heads, kv_heads, dims   of the attention; dims of a head
    style, activation       constants of `elementwise`
    dtype   of weights and states
    """

    hidden: int
    inputs: int
    heads: int
    kv_heads: int
    dims: int
    style: int
    activation: int
    dtype: torch.dtype
