"""The names of tensors in DFlash and DSpark files, the one spelling used here, and which a head has; no shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DFLASH: Final = "dflash"
DSPARK: Final = "dspark"

PREFIXES: Final = ("model.", "module.")
SPELLINGS: Final = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "midlayer.": "layers.0.",
}
SINKS: Final = "self_attn.sinks"
IGNORED: Final = ("rotary_emb.", "verifier_norm.", "verifier_lm_head.")

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


def spell(name: str) -> str | None:
    """Return the name used here for a tensor of a file, None for one that is never needed."""
    if any(part in name for part in IGNORED):
        return None
    for table in ("d2t", "t2d"):
        if name == table or name.endswith(f".{table}"):
            return table
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for spelling, ours in SPELLINGS.items():
        if name.startswith(spelling):
            name = ours + name.removeprefix(spelling)
    if name.endswith(".attention_sink_bias"):
        return name.replace("self_attn.attention_sink_bias", SINKS)
    bare = name in (W1.removesuffix(".weight"), W2.removesuffix(".weight"), CONFIDENCE.removesuffix(".weight"))
    return f"{name}.weight" if bare else name


def spelled(names: Iterable[str]) -> dict[str, str]:
    """Return the file's name of each tensor by the name used here; raises ValueError for two that claim one name."""
    found: dict[str, str] = {}
    for name in sorted(names):
        ours = spell(name)
        if ours is None:
            continue
        if ours in found:
            message = f"the tensors {found[ours]} and {name} are both {ours}"
            raise ValueError(message)
        found[ours] = name
    return found


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
