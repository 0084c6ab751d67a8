"""Random EAGLE checkpoints of every layout, written to disk as their producers write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def config(width: int, **overrides: Any) -> dict[str, Any]:
    """Return a small Llama configuration."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": 2 * width,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 16,
        "hidden_act": "silu",
    } | overrides


class Weights:
    """Draws tensors one after the other from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.5) -> Tensor:
        return torch.randn(rows, columns, generator=self._generator) * gain / columns**0.5

    def vector(self, width: int, around: float = 1.0) -> Tensor:
        return around + 0.2 * torch.randn(width, generator=self._generator)


def block(
    w: Weights, prefix: str, width: int, columns: int, *, qk_norm: bool = False, bias: bool = False
) -> dict[str, Tensor]:
    """Return one Llama block whose attention reads vectors of `columns`."""
    inner = 2 * width
    sizes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, columns),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, columns),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, columns),
        "self_attn.o_proj": (width, HEADS * HEAD_DIM),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    tensors = {f"{prefix}{name}.weight": w.matrix(*size) for name, size in sizes.items()}
    tensors[f"{prefix}post_attention_layernorm.weight"] = w.vector(width)
    if qk_norm:
        tensors |= {f"{prefix}self_attn.{n}_norm.weight": w.vector(HEAD_DIM) for n in "qk"}
    if bias:
        rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        tensors |= {f"{prefix}self_attn.{n}_proj.bias": w.vector(size, 0.0) for n, size in rows.items()}
    return tensors


def eagle_1(width: int, *, seed: int = 0, layers: int = 1, bias: bool = False, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of an EAGLE-1 head of Llama flavour."""
    w = Weights(seed)
    tensors = {"fc.weight": w.matrix(width, 2 * width)}
    if bias:
        tensors["fc.bias"] = w.vector(width, 0.0)
    for i in range(layers):
        tensors |= block(w, f"layers.{i}.", width, width)
        if i:
            tensors[f"layers.{i}.input_layernorm.weight"] = w.vector(width)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def eagle_3(
    width: int,
    *,
    target_width: int | None = None,
    aux: int = 3,
    vocab: int,
    draft_vocab: int,
    seed: int = 0,
    layer: str = "midlayer.",
    layers: int = 1,
    qk_norm: bool = False,
    bias: bool = False,
    own_embedding: bool = False,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    mask: bool = False,
) -> dict[str, Tensor]:
    """Return the tensors of an EAGLE-3 head."""
    w = Weights(seed)
    states = aux * (target_width or width)
    tensors = {"fc.weight": w.matrix(width, states)} if aux else {}
    tensors |= block(w, layer, width, 2 * width, qk_norm=qk_norm, bias=bias)
    tensors |= {f"{layer}{name}.weight": w.vector(width) for name in ("hidden_norm", "input_layernorm")}
    for i in range(1, layers):
        tensors |= block(w, f"layers.{i}.", width, width, qk_norm=qk_norm, bias=bias)
        tensors[f"layers.{i}.input_layernorm.weight"] = w.vector(width)
    tensors["norm.weight"] = w.vector(width)
    tensors["lm_head.weight"] = w.matrix(draft_vocab, width, 4.0)
    if draft_vocab != vocab:
        order = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))
        chosen = order[:draft_vocab].sort().values
        tensors["d2t"] = chosen - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True)
    if own_embedding or (target_width or width) != width:
        tensors["embed_tokens.weight"] = w.matrix(vocab, width, 0.5 * width**0.5)
    if norm_before_fc:
        tensors["input_norm.weight"] = w.vector(states)
    if fc_norm:
        tensors |= {f"fc_norm.{i}.weight": w.vector(target_width or width) for i in range(aux)}
    if mask:
        tensors["mask_hidden"] = w.matrix(1, states).reshape(1, 1, states)
    return tensors


def save(folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], *, torch_file: bool = False) -> str:
    """Write a checkpoint and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(settings)))
    if torch_file:
        torch.save(dict(tensors), folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)
