"""Random adapters, and the files that their producers make of them; reads nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec_testing import watching
from specdec_testing.layouts import Layout
from specdec_testing.targets import tiny_target

TARGET = tiny_target("llama", num_hidden_layers=4, max_position_embeddings=512)
WIDTH = TARGET.config.hidden_size
EXIT = 2
resolve_config, built = watching.over(TARGET, method="kangaroo")


def config(heads: int = 4, groups: int = 4, layers: int = 1, **more: Any) -> dict[str, Any]:
    """Return an adapter's config.json, which is one of a Llama model."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
        "intermediate_size": 96, "max_position_embeddings": 64, "num_attention_heads": heads,
        "num_key_value_heads": groups, "num_hidden_layers": layers, "rms_norm_eps": 1e-6, "vocab_size": 128,
        "torch_dtype": "float16", "transformers_version": "4.28.1", **more,
    }  # fmt: skip


def adapter(settings: dict[str, Any], seed: int = 0, width: int = WIDTH) -> dict[str, Tensor]:
    """Draw an adapter's tensors."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.5) -> Tensor:
        return torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5

    heads, groups = settings["num_attention_heads"], settings["num_key_value_heads"]
    d, tensors = width // heads, {"norm.weight": 1.0 + 0.3 * torch.randn(width, generator=generator)}
    for layer in range(settings["num_hidden_layers"]):
        own = f"layers.{layer}."
        tensors[f"{own}input_layernorm.weight"] = 1.0 + 0.3 * torch.randn(width, generator=generator)
        for name, rows in (("q", heads * d), ("k", groups * d), ("v", groups * d)):
            tensors[f"{own}self_attn.{name}_proj.weight"] = draw(rows, width)
        tensors[f"{own}self_attn.o_proj.weight"] = draw(width, heads * d)
    return tensors


def layout(name: str, *, file: str = "pytorch_model.bin", prefix: str = "", **keys: Any) -> Layout[dict[str, Tensor]]:
    """Return an adapter as it is stored; `parts` are its tensors by their own names."""
    settings = config(**keys)
    parts = adapter(settings, seed=sum(map(ord, name)))
    return Layout(parts, {prefix + key: tensor for key, tensor in parts.items()}, settings, file)


LAYOUTS = {
    name: layout(name, **keys)
    for name, keys in {
        "published": {},
        "grouped": {"groups": 2, "rope_theta": 500.0, "rms_norm_eps": 1e-3, "file": "model.safetensors"},
        "two layers": {"layers": 2, "prefix": "module.", "file": "model.safetensors"},
    }.items()
}
PUBLISHED = LAYOUTS["published"]
