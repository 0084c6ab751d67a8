"""The sizes of a drafter's block, as the config of its checkpoint has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Sizes of a block.

    heads, kv_heads, head_dim  of the attention
    eps         of its norms
    activation  name of the MLP's gate activation, as in transformers' configs
    window      keys that a row sees, its own included; None = all
    scaling     factor of the attention scores; None = head_dim ** -0.5
    residual_scale  factor of what attention and MLP add to the residual
    l2_norm     queries and keys are normed, without a weight, after they are turned
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str = "silu"
    window: int | None = None
    scaling: float | None = None
    residual_scale: float = 1.0
    l2_norm: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BlockConfig:
        """Read the sizes from a configuration with Llama's keys."""
        heads = int(config["num_attention_heads"])
        return cls(
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            activation=str(config.get("hidden_act", "silu")),
        )
