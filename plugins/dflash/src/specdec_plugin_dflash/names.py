"""The names of tensors in DFlash and DSpark files, the one spelling used here, and which a head has; no shapes."""

from __future__ import annotations

from typing import Final

from specdec_nn.checkpoints.names import Spelling

DFLASH: Final = "dflash"
DSPARK: Final = "dspark"

SINKS: Final = "self_attn.sinks"

LAYER: Final = (
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
LAYER_OPTIONAL: Final = (*(f"self_attn.{name}_proj.bias" for name in "qkvo"), SINKS)
FC: Final = "fc.weight"
HIDDEN_NORM: Final = "hidden_norm.weight"
NORM: Final = "norm.weight"
EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head.weight"
W1: Final = "markov_head.markov_w1.weight"
W2: Final = "markov_head.markov_w2.weight"
CONFIDENCE: Final = "confidence_head.proj.weight"
CONFIDENCE_BIAS: Final = "confidence_head.proj.bias"
OPTIONAL: Final = (FC, EMBEDDING, HEAD, "d2t", "t2d")
# Endings of tensors that are read in floating point.
FLOATS: Final = (".weight", ".bias", "_weight", "_bias", "_l0", ".base_kernel", "_codebook", "_embedding")
SPELLING: Final = Spelling(
    ignored=("rotary_emb.", "verifier_norm.", "verifier_lm_head."),
    tables=("d2t", "t2d"),
    prefixes=("model.", "module."),
    replaced=(
        ("encoder.fc.", "fc."),
        ("encoder.output_norm_enc.", "hidden_norm."),
        ("midlayer.", "layers.0."),
        (".self_attn.attention_sink_bias", f".{SINKS}"),
        # LiLiCorr's MLPs, where they are stored as sequences of layers.
        ("lilicorr.feature_mlp.0.", "lilicorr.feature_norm."),
        ("lilicorr.feature_mlp.1.", "lilicorr.feature_mlp.up_proj."),
        ("lilicorr.feature_mlp.3.", "lilicorr.feature_mlp.down_proj."),
        (".mlp.0.", ".mlp.up_proj."),
        (".mlp.2.", ".mlp.down_proj."),
    ),
    whole=tuple((name.removesuffix(".weight"), name) for name in (W1, W2, CONFIDENCE)),
)


def required(method: str, num_layers: int, *, aux: bool) -> list[str]:
    """Return the names without which a head cannot be built; `aux` says that it mixes states of several layers."""
    names = [f"layers.{i}.{name}" for i in range(num_layers) for name in LAYER]
    names += [HIDDEN_NORM, NORM, *((FC,) if aux else ()), *((W1, W2) if method == DSPARK else ())]
    return names


def allowed(method: str, num_layers: int) -> set[str]:
    """Return all names that a head may have."""
    names = {f"layers.{i}.{name}" for i in range(num_layers) for name in (*LAYER, *LAYER_OPTIONAL)}
    spark = (W1, W2, CONFIDENCE, CONFIDENCE_BIAS) if method == DSPARK else ()
    return names | {HIDDEN_NORM, NORM, *OPTIONAL, *spark}
