"""Wires what DFlash2, LiLiCorr and Domino heads have on top of a DFlash block; no drafting here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_nn.checkpoints.head_weights import HeadWeights
from specdec_nn.drafters.head_parts import Vocabulary
from specdec_plugin_dflash.additions import CONVOLUTIONS, DOMINO, LATTICE, SELECTOR, Additions
from specdec_plugin_dflash.choosers import Chooser, PairSelector, PrefixCorrection
from specdec_plugin_dflash.convolution import BlockConvolution
from specdec_plugin_dflash.lattice import Lattice, LatticeLayer, LatticeParts, attention_bias

Map = Callable[[Tensor], Tensor]


def capped(logits: Map, multiplier: float, cap: float | None) -> Map:
    """Return what makes float32 logits times a factor, with a soft cap c: c tanh(x / c)."""

    def made(states: Tensor) -> Tensor:
        values = logits(states).float() * multiplier
        return values if cap is None else cap * torch.tanh(values / cap)

    return made


def convolutions(
    additions: Additions, weights: HeadWeights, layer: int
) -> tuple[BlockConvolution, BlockConvolution] | None:
    """Return the convolutions around attention and MLP of a layer, None for a head without any."""
    if not additions.taps:
        return None
    names = [f"layers.{layer}.{name}." for name in CONVOLUTIONS]
    attention, mlp = (
        BlockConvolution(weights.get(f"{name}base_kernel"), weights.linear(f"{name}kernel_projection"))
        for name in names
    )
    return attention, mlp


def chooser_of(additions: Additions, weights: HeadWeights, vocabulary: Vocabulary, eps: float) -> Chooser | None:
    """Return what goes through the places of a block, None where each is drafted on its own."""
    if additions.kind == SELECTOR:
        tables = [weights.get(f"candidate_selector.{name}_codebook") for name in ("predecessor", "successor")]
        project = weights.linear("candidate_selector.hidden_projection")
        return PairSelector(tables[0], tables[1], project, additions.count("selector_top_k"))
    if additions.kind == DOMINO:
        return _correction(additions, weights, vocabulary)
    return _lattice(additions, weights, vocabulary, eps) if additions.kind == LATTICE else None


def _correction(additions: Additions, weights: HeadWeights, vocabulary: Vocabulary) -> PrefixCorrection:
    return PrefixCorrection(
        embed=vocabulary.embed,
        by_id=weights.stacked(["prefix_gru.weight_ih_l0"]),
        by_prefix=weights.stacked(["prefix_gru.weight_hh_l0"]),
        inner=weights.linear("embed_proj.0"),
        correct=weights.linear("embed_proj.2", weights.vocab_size),
        size=additions.count("gru_hidden_dim"),
    )


def _lattice(additions: Additions, weights: HeadWeights, vocabulary: Vocabulary, eps: float) -> Lattice:
    def linear(name: str) -> Map:
        return weights.linear(f"lilicorr.{name}")

    def get(name: str) -> Tensor:
        return weights.get(f"lilicorr.{name}")

    layers = [_lattice_layer(weights, f"lilicorr.layers.{i}.", eps) for i in range(additions.count("num_layers"))]
    k = additions.count("candidate_topk")
    parts = LatticeParts(
        embed=vocabulary.embed,
        token=linear("token_proj") if "lilicorr.token_proj.weight" in weights else lambda x: x,
        state=linear("pass_hidden_proj"),
        context=linear("context_proj"),
        feature_norm=(get("feature_norm.weight"), get("feature_norm.bias")),
        feature_up=linear("feature_mlp.up_proj"),
        feature_down=linear("feature_mlp.down_proj"),
        slots=get("slot_embedding")[0, 0, :, 0],
        ranks=get("rank_embedding")[0, 0, 0],
        bias=attention_bias(get("relative_slot_bias"), get("same_slot_bias"), k),
        layers=layers,
        output_norm=weights.norm("lilicorr.output_norm.weight", eps),
        anchor_norm=weights.norm("lilicorr.anchor_norm.weight", eps),
        factor=linear("factor_input_proj"),
        leave=linear("out_head"),
        enter=linear("in_head"),
        start=linear("anchor_out_head"),
    )
    return Lattice(parts, eps=additions.sizes["vector_eps"], scale=additions.sizes["logit_scale"])


def _lattice_layer(weights: HeadWeights, prefix: str, eps: float) -> LatticeLayer:
    return LatticeLayer(
        attention_norm=weights.norm(f"{prefix}attn_norm.weight", eps),
        qkv=weights.stacked([f"{prefix}attn.in_proj_weight"], f"{prefix}attn.in_proj_bias"),
        out=weights.linear(f"{prefix}attn.out_proj"),
        mlp_norm=weights.norm(f"{prefix}mlp_norm.weight", eps),
        up=weights.linear(f"{prefix}mlp.up_proj"),
        down=weights.linear(f"{prefix}mlp.down_proj"),
    )
