"""A decoder layer that is trained: Llama's, by the names of its checkpoints, over rows of which part stays the same.

What attention reads is a sum of two parts at every depth of unrolled drafts: one of the row's token, which is the same
at all depths and is computed once, and one of its state. It knows no head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_nn.layers.block_config import BlockConfig
from specdec_nn.layers.rotary import Rotary
from specdec_nn.training.unrolled import UnrolledAttention

Turn = tuple[Tensor, Tensor]


class Projection(nn.Module):
    """The weight [out, in] of a linear layer; `bias` [out] if it has one."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        """Draw the weight with unit gain; biases are zeros."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """RMS norm with a weight [width]."""

    def __init__(self, width: int, eps: float) -> None:
        """Begin with ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed rows, in float32 whatever autocast would have."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self._eps)


class Attention(nn.Module):
    """Projections of attention."""

    def __init__(self, config: BlockConfig, inputs: int, outputs: int, bias: bool) -> None:
        """Take the width of what queries, keys and values are made of, and that of the result."""
        super().__init__()
        self.q_proj = Projection(inputs, config.heads * config.head_dim, bias)
        self.k_proj = Projection(inputs, config.kv_heads * config.head_dim, bias)
        self.v_proj = Projection(inputs, config.kv_heads * config.head_dim, bias)
        self.o_proj = Projection(config.heads * config.head_dim, outputs)


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, inner: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.gate_proj = Projection(width, inner)
        self.up_proj = Projection(width, inner)
        self.down_proj = Projection(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., width] of normed rows."""
        made: Tensor = self.down_proj(self.neurons(x))
        return made

    def neurons(self, x: Tensor) -> Tensor:
        """Return what goes into the last layer, [..., inner]."""
        made: Tensor = F.silu(self.gate_proj(x)) * self.up_proj(x)
        return made


class TrainedBlock(nn.Module):
    """Attention, then a gated MLP, each behind what the caller or a norm makes of the residual."""

    def __init__(self, config: BlockConfig, width: int, inputs: int, inner: int, *, bias: bool = False) -> None:
        """Take the residual's width, that of what attention reads, and the neurons of the MLP."""
        super().__init__()
        self.config = config
        self.self_attn = Attention(config, inputs, width, bias)
        self.mlp = Mlp(width, inner)
        self.post_attention_layernorm = Norm(width, config.eps)

    def qkv(self, x: Tensor, columns: slice = slice(None)) -> Tensor:
        """Return queries, keys and values side by side of [S, L, columns]; biases count in the first columns only."""
        parts = (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj)
        weight = torch.cat([part.weight[:, columns] for part in parts])
        if self.self_attn.q_proj.bias is None or columns.start:
            return F.linear(x, weight)
        return F.linear(x, weight, torch.cat([part.bias for part in parts if part.bias is not None]))

    def forward(
        self, qkv: Tensor, residual: Tensor, rotary: Rotary, turn: Turn, attention: UnrolledAttention
    ) -> Tensor:
        """Return residual + attention, plus the MLP of its norm, [S, L, width]; `qkv` as `qkv` returns it."""
        c = self.config
        rows = qkv.view(*qkv.shape[:2], c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = torch.tensor_split(rows, (c.heads, c.heads + c.kv_heads), dim=2)
        q, k = (_turned(rotary, part, turn) for part in (q, k))
        mixed = attention(q, k, v)
        hidden = residual + self.self_attn.o_proj(mixed.reshape(*mixed.shape[:2], -1))
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


def _turned(rotary: Rotary, heads: Tensor, turn: Turn) -> Tensor:
    """Turn heads [S, L, heads, D] by their positions."""
    return rotary.rotate(heads.flatten(0, 1), *turn).to(heads.dtype).view(heads.shape)


def block_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a target's config.json that a layer of a head keeps, under Llama's names."""
    heads = int(config["num_attention_heads"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = config.get("rope_theta") or rope.get("rope_theta") or 10000.0
    kind = rope.get("rope_type") or rope.get("type") or "default"
    scaling = None if kind == "default" else {key: rope[key] for key in rope if key not in ("type", "rope_theta")}
    return {
        "hidden_size": int(config["hidden_size"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or config["hidden_size"] // heads),
        "rms_norm_eps": float(config.get("rms_norm_eps") or 1e-6),
        "hidden_act": "silu",
        "max_position_embeddings": int(config.get("max_position_embeddings") or 2048),
        "rope_theta": float(theta),
        **({"rope_scaling": scaling} if scaling else {}),
    }
