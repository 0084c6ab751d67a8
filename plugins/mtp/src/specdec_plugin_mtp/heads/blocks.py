"""The decoder layer inside a module of each family, of transformers' own classes; without weights, and run flat.

So latent attention, experts, partial rotary and the like are the library's. Where a module's layer is not one of the
model's own, it is put together from the library's parts.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.registry.kernels import Kernels
from specdec_nn.cache.arena import KVArena
from specdec_nn.hf.binding import Binding
from specdec_nn.ops.attention.reference import AttentionStep


def deepseek_v3(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer with experts, as all are behind the first few."""
    config.first_k_dense_replace = 0
    layer: nn.Module = library.DeepseekV3DecoderLayer(config, module)
    return layer


def glm4_moe(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer with experts, as all are behind the first few."""
    config.first_k_dense_replace = 0
    layer: nn.Module = library.Glm4MoeDecoderLayer(config, module)
    return layer


def qwen2(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer that sees the whole context."""
    config.layer_types = ["full_attention"] * (module + 1)
    layer: nn.Module = library.Qwen2DecoderLayer(config, module)
    return layer


def qwen3(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer that sees the whole context."""
    config.layer_types = ["full_attention"] * (module + 1)
    layer: nn.Module = library.Qwen3DecoderLayer(config, module)
    return layer


def qwen3_next(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer of output-gated attention over the whole context, with experts."""
    config.layer_types = ["full_attention"] * (module + 1)
    config.mlp_only_layers, config.decoder_sparse_step = [], 1
    layer: nn.Module = library.Qwen3NextDecoderLayer(config, module)
    return layer


def qwen3_5(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer of output-gated attention over the whole context, with a dense MLP."""
    config.layer_types = ["full_attention"] * (module + 1)
    layer: nn.Module = library.Qwen3_5DecoderLayer(config, module)
    return layer


def qwen3_5_moe(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a layer of output-gated attention over the whole context, with experts."""
    config.layer_types = ["full_attention"] * (module + 1)
    layer: nn.Module = library.Qwen3_5MoeDecoderLayer(config, module)
    return layer


def ernie4_5(library: ModuleType, config: Any, module: int) -> nn.Module:
    """Return a dense layer, as the first few of the model are."""
    config.moe_layer_start_index = module + 1
    layer: nn.Module = library.Ernie4_5_MoeDecoderLayer(config, module)
    return layer


class LongcatBlock(nn.Module):
    """Latent attention and a dense MLP (LongCat-Flash, arXiv 2509.01322); the model's layers are double."""

    def __init__(self, library: ModuleType, config: Any, module: int) -> None:
        """Take the parts; names are those of the checkpoint."""
        super().__init__()
        norms = [library.LongcatFlashRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2)]
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn = library.LongcatFlashMLA(config, module)
        for name in ("mla_scale_q_lora", "mla_scale_kv_lora"):
            if getattr(config, name, True) is False:
                setattr(self.self_attn, name, 1.0)
        self.transformer_layer = nn.ModuleDict({"mlp": library.LongcatFlashMLP(config)})

    def forward(self, hidden_states: Tensor, **keywords: Any) -> Tensor:
        """Return the block's output [1, N, H]."""
        mixed, _ = self.self_attn(self.input_layernorm(hidden_states), **keywords)
        hidden_states = hidden_states + mixed
        out: Tensor = hidden_states + self.transformer_layer["mlp"](self.post_attention_layernorm(hidden_states))
        return out


class FlatBlock:
    """A decoder layer with its weights over flat rows, whose keys and values are in an arena."""

    def __init__(self, layer: nn.Module, rotary: nn.Module, kernels: Kernels, device: torch.device) -> None:
        """Take the layer and what makes cosines and sines of positions, both on the device.

        There is no table of positions, so the block works at any of them (design 7).
        """
        self._layer, self._rotary = layer, rotary
        linear = kernels.get("linear", device) if device.type == "cpu" else None
        self._binding = Binding(nn.ModuleList([layer]), kernels.get("attention", device), linear)

    def __call__(self, x: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep) -> Tensor:
        """Return [N, H] of rows x [N, H] at positions [N], and write their keys and values where `step` specifies."""
        places = positions.unsqueeze(0)
        turn = self._rotary(x.unsqueeze(0), places)
        with self._binding:
            self._binding.step, self._binding.arena = step, arena
            try:
                out = self._layer(
                    x.unsqueeze(0),
                    attention_mask=None,
                    position_ids=places,
                    use_cache=False,
                    position_embeddings=turn,
                )
            finally:
                self._binding.step = self._binding.arena = None
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return first.reshape(x.shape)
