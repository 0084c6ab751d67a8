"""Random DFlash and DSpark checkpoints of every layout, written to disk as their producers write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM, RANK = 4, 2, 8, 6
PAIR_RANK, TOP_K, TAPS, GROUP = 5, 4, 3, 8  # of DFlash2 heads
CONV_KEYS = {"conv_kernel_size": TAPS, "conv_group_size": GROUP}
SELECTOR_KEYS = {**CONV_KEYS, "selector_rank": PAIR_RANK, "selector_top_k": TOP_K}
BLOCK = 8  # rows of a LiLiCorr head
GRU, INNER = 12, 10  # widths of a Domino head
LATTICE_KEYS = {
    "lilicorr_enabled": True,
    "block_size": BLOCK,
    "lilicorr_candidate_topk": TOP_K,
    "lilicorr_num_heads": 2,
    "lilicorr_num_layers": 2,
    "lilicorr_mlp_ratio": 1.5,
    "lilicorr_factor_dim": 6,
    "lilicorr_vector_eps": 1e-6,
    "lilicorr_logit_scale": 7.0,
}
DOMINO_KEYS = {"projector_type": "domino", "gru_hidden_dim": GRU, "emb_dim": INNER, "pure_draft_prefix_len": 1}


def config(width: int, layers: int = 2, **overrides: Any) -> dict[str, Any]:
    """Return a small configuration with Qwen3's keys; None takes a key away."""
    base = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": 2 * width,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "max_position_embeddings": 16,
        "hidden_act": "silu",
        "block_size": 8,
    }
    return {key: value for key, value in {**base, **overrides}.items() if value is not None}


class Weights:
    """Draws tensors one after the other from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.5) -> Tensor:
        return torch.randn(rows, columns, generator=self._generator) * gain / columns**0.5

    def vector(self, width: int, around: float = 1.0, spread: float = 0.2) -> Tensor:
        return around + spread * torch.randn(width, generator=self._generator)


def trunk(
    width: int, states: int, *, seed: int, layers: int = 2, sinks: bool = False, bias: bool = False
) -> dict[str, Tensor]:
    """Return the tensors of a head over `states` numbers a row, 0 for the final state of its own width."""
    w = Weights(seed)
    tensors = {"fc.weight": w.matrix(width, states)} if states else {}
    tensors |= {"hidden_norm.weight": w.vector(width), "norm.weight": w.vector(width)}
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for i in range(layers):
        p, attention = f"layers.{i}.", f"layers.{i}.self_attn."
        sizes = {"q_proj": (q, width), "k_proj": (kv, width), "v_proj": (kv, width), "o_proj": (width, q)}
        tensors |= {f"{attention}{name}.weight": w.matrix(*size) for name, size in sizes.items()}
        tensors |= {f"{attention}{name}_norm.weight": w.vector(HEAD_DIM) for name in "qk"}
        tensors |= {f"{p}{name}_layernorm.weight": w.vector(width) for name in ("input", "post_attention")}
        tensors |= {f"{p}mlp.{name}_proj.weight": w.matrix(2 * width, width) for name in ("gate", "up")}
        tensors[f"{p}mlp.down_proj.weight"] = w.matrix(width, 2 * width)
        if sinks:
            tensors[f"{attention}attention_sink_bias"] = w.vector(HEADS, 0.5, 1.0)
        if bias:
            tensors |= {f"{attention}{name}.bias": w.vector(size[0], 0.0) for name, size in sizes.items()}
    return tensors


def vocabulary(width: int, vocab: int, rows: int, *, seed: int, embedding: bool = False) -> dict[str, Tensor]:
    """Return a head of `rows` ids, with a map if these are fewer than the target's `vocab`, and maybe an embedding."""
    w = Weights(seed + 1000)
    tensors = {"lm_head.weight": w.matrix(rows, width, 4.0)}
    if rows < vocab:
        order = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))
        chosen = order[:rows].sort().values
        tensors["d2t"] = chosen - torch.arange(rows)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True)
    if embedding:
        tensors["embed_tokens.weight"] = w.matrix(vocab, width, 0.5 * width**0.5)
    return tensors


def markov(
    width: int, vocab: int, rows: int, *, seed: int, confidence: int | None = None, bias: bool = False
) -> dict[str, Tensor]:
    """Return a Markov head, and a confidence head over this many numbers."""
    w = Weights(seed + 2000)
    tensors = {
        "markov_head.markov_w1.weight": w.matrix(vocab, RANK, 3.0),
        "markov_head.markov_w2.weight": w.matrix(rows, RANK, 6.0),
    }
    if confidence is not None:
        tensors["confidence_head.proj.weight"] = w.matrix(1, confidence, 2.0)
        if bias:
            tensors["confidence_head.proj.bias"] = w.vector(1, 0.4)
    return tensors


def conv_tensors(width: int, *, seed: int, layers: int = 2) -> dict[str, Tensor]:
    """Return the convolutions of a DFlash2 head."""
    w, found = Weights(seed + 3000), dict[str, Tensor]()
    for i in range(layers):
        for name in ("attention_conv", "mlp_conv"):
            p = f"layers.{i}.{name}."
            taps = [w.vector(width, 1.0 if tap == 0 else 0.3, 0.3) for _ in range(2) for tap in range(TAPS)]
            found[f"{p}base_kernel"] = torch.stack(taps).view(2, TAPS, width)
            found[f"{p}kernel_projection.weight"] = w.matrix(2 * TAPS * width // GROUP, width, 0.4)
    return found


def selector_tensors(width: int, rows: int, *, seed: int) -> dict[str, Tensor]:
    """Return the selector of a DFlash2 head."""
    w = Weights(seed + 4000)
    return {
        "candidate_selector.predecessor_codebook": w.matrix(rows, PAIR_RANK, 3.0),
        "candidate_selector.successor_codebook": w.matrix(rows, PAIR_RANK, 3.0),
        "candidate_selector.hidden_projection.weight": w.matrix(PAIR_RANK, width, 1.5),
    }


def lattice_tensors(width: int, inner: int, seed: int, *, heads: int, layers: int, factor: int) -> dict[str, Tensor]:
    w = Weights(seed + 5000)
    found = {
        "feature_norm.weight": w.vector(5),
        "feature_norm.bias": w.vector(5, 0.0),
        "slot_embedding": w.matrix(BLOCK - 1, inner).view(1, 1, BLOCK - 1, 1, inner),
        "rank_embedding": w.matrix(TOP_K, inner).view(1, 1, 1, TOP_K, inner),
        "relative_slot_bias": w.matrix(heads, 2 * BLOCK - 1, 4.0),
        "same_slot_bias": w.vector(heads, 0.5),
        "output_norm.weight": w.vector(inner),
        "anchor_norm.weight": w.vector(inner),
    }
    sizes = {"pass_hidden_proj": (inner, width), "context_proj": (inner, width)}
    sizes |= {"feature_mlp.up_proj": (inner, 5), "feature_mlp.down_proj": (inner, inner)}
    sizes |= {"factor_input_proj": (inner, 3 * inner), "out_head": (factor, inner), "in_head": (factor, inner)}
    sizes |= {"anchor_out_head": (factor, inner)}
    sizes |= {} if inner == width else {"token_proj": (inner, width)}
    for i in range(layers):
        p = f"layers.{i}."
        found |= {f"{p}attn_norm.weight": w.vector(inner), f"{p}mlp_norm.weight": w.vector(inner)}
        found |= {f"{p}attn.in_proj_weight": w.matrix(3 * inner, inner)}
        found |= {f"{p}attn.in_proj_bias": w.vector(3 * inner, 0.0)}
        sizes |= {f"{p}attn.out_proj": (inner, inner)}
        sizes |= {f"{p}mlp.up_proj": (int(1.5 * inner), inner), f"{p}mlp.down_proj": (inner, int(1.5 * inner))}
    for name, size in sizes.items():
        found |= {f"{name}.weight": w.matrix(*size), f"{name}.bias": w.vector(size[0], 0.0)}
    return {f"lilicorr.{name}": tensor for name, tensor in found.items()}


def domino_tensors(width: int, seed: int, rows: int) -> dict[str, Tensor]:
    w = Weights(seed + 6000)
    return {
        "prefix_gru.weight_ih_l0": w.matrix(3 * GRU, width, 3.0),
        "prefix_gru.weight_hh_l0": w.matrix(3 * GRU, GRU, 2.0),
        "embed_proj.0.weight": w.matrix(INNER, width + GRU, 3.0),
        "embed_proj.2.weight": w.matrix(rows, INNER, 6.0),
    }


def renamed(tensors: Mapping[str, Tensor], names: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Return the tensors with the beginnings of names replaced."""
    found = dict(tensors)
    for old, new in names:
        found = {new + name.removeprefix(old) if name.startswith(old) else name: t for name, t in found.items()}
    return found


def save(
    folder: Path,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    mask: Any = None,
    *,
    torch_file: bool = False,
) -> str:
    """Write a checkpoint, with the content of `mask_embedding.pt` if there is one, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(settings)))
    if torch_file:
        torch.save(dict(tensors), folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if mask is not None:
        torch.save(mask, folder / "mask_embedding.pt")
    return str(folder)
