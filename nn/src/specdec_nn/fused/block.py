"""One block of a drafter as one call of the compiled pass, where it is made of what the pass knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from specdec_nn.fused.elementwise import GELU_TANH, PLAIN, SILU
from specdec_nn.fused.parts import Block, Norm, Shape
from specdec_nn.fused.passes import Pass
from specdec_nn.fused.unfit import Unfit
from specdec_nn.ops.cpu.elements import KINDS
from specdec_nn.ops.linear.numba import InPlace, pack
from specdec_nn.ops.linear.reference import PackedLinear

if TYPE_CHECKING:
    from specdec_nn.layers.block_config import BlockConfig

ACTIVATIONS: Final = {"silu": SILU, "gelu_pytorch_tanh": GELU_TANH}


def fused_block(
    config: BlockConfig,
    products: Mapping[str, PackedLinear],
    norms: Mapping[str, Tensor],
    sinks: Tensor | None,
    layer: int,
) -> Pass:
    """Return the pass of a block on the CPU; raises Unfit where it has something that the pass does not know.

    products  "qkv", "o", "gate_up", "down": queries, keys and values one behind the other, and gate and up
    norms     weights by the names of `tables.NORMS`
    layer     its number in the arena
    """
    qkv, dtype = products["qkv"], products["qkv"].weight.dtype
    activation = ACTIVATIONS.get(config.activation)
    if activation is None:
        raise Unfit(f"its activation is {config.activation!r}")
    if config.l2_norm:
        raise Unfit("its queries and keys are normed after they are turned")
    dtypes = {str(each.weight.dtype).removeprefix("torch.") for each in products.values()}
    if len(dtypes) > 1 or not dtypes <= set(KINDS):
        raise Unfit(f"its weights are in {', '.join(sorted(dtypes))}")
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    parts = dict(zip("qkv", _cut(qkv, [queries, keys, keys]), strict=True))
    inner = products["gate_up"].out_features // 2
    parts |= dict(zip(("gate", "up"), _cut(products["gate_up"], [inner, inner]), strict=True))
    parts |= {"o": products["o"], "down": products["down"]}
    placed: dict[str, tuple[PackedLinear, InPlace]] = {}
    for name, packed in parts.items():
        form = packed.form or pack(packed)
        if form is None:
            raise Unfit(f"the weight of {name} cannot be read in place")
        placed[name] = (packed, form)
    block = Block(
        norms={name: Norm(weight.detach().float().contiguous(), config.eps) for name, weight in norms.items()},
        products=placed,
        inner=inner,
        arena=layer,
        rope="",
        scaling=config.head_dim**-0.5 if config.scaling is None else config.scaling,
        softcap=None,
        window=config.window,
        sinks=None if sinks is None else sinks.detach().float().contiguous(),
        residual=config.residual_scale,
    )
    shape = Shape(
        hidden=products["o"].out_features,
        inputs=qkv.in_features,
        heads=config.heads,
        kv_heads=config.kv_heads,
        dims=config.head_dim,
        style=PLAIN,
        activation=activation,
        dtype=dtype,
    )
    return Pass(shape, [block], None)


def _cut(packed: PackedLinear, outputs: list[int]) -> list[PackedLinear]:
    """Return a linear layer's outputs in parts, which share its memory."""
    weights = torch.split(packed.weight, outputs)
    biases = [None] * len(outputs) if packed.bias is None else torch.split(packed.bias, outputs)
    return [PackedLinear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
