"""The speculators checkpoint format, turned into the plain configuration of an EAGLE head; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.errors import ConfigError
from specdec_nn.checkpoints.speculators import BASE, TYPE, base_config, is_of_type, mask_token
from specdec_plugin_eagle.required import EAGLE_1, EAGLE_3, SECOND_NORMS

METHODS: Final = {"eagle": EAGLE_1, "eagle3": EAGLE_3, "peagle": EAGLE_3}
LAYER: Final = "LlamaDecoderLayer"  # the only one in files of type eagle
SWITCHES: Final = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is in this format, of a type that is an EAGLE head."""
    return is_of_type(config, METHODS)


def patch_of(hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the keys that a configuration in this format stands for, None for others."""
    return converted(hf_config) if is_speculators(hf_config) else None


def converted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain configuration that this one stands for; top-level keys keep their places beside it.

    The same switch that is missing means true in files of type eagle3 (`norm_before_residual`), and false in others.
    Raises ConfigError naming the key that is missing or wrong.
    """
    base = base_config(config)
    kind = config[TYPE]
    if METHODS[kind] == EAGLE_1:
        return _eagle_1(config, base)
    plain: dict[str, Any] = {**base, "architectures": [_architecture(kind, base)]}
    for key in ("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids"):
        if config.get(key):
            plain[key] = config[key]
    for key in SWITCHES:
        default = kind == "eagle3" and key == "norm_before_residual"
        plain[key] = bool(default if config.get(key) is None else config[key])
    if kind == "peagle":
        plain["pard_token"] = mask_token(config)
    return plain


def _eagle_1(config: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    layer = config.get("transformer_layer_architecture") or LAYER
    if layer != LAYER:
        message = f"transformer_layer_architecture is {layer!r}; heads of type {config[TYPE]} have one {LAYER}"
        raise ConfigError(message)
    return {**base, "architectures": ["LlamaForCausalLM"], SECOND_NORMS: bool(config.get(SECOND_NORMS))}


def _architecture(kind: str, base: Mapping[str, Any]) -> str:
    family = str(base.get("model_type") or "llama")
    if family not in ("llama", "qwen3"):
        message = f"{BASE}.model_type is {family!r}; heads of this format have blocks of llama or qwen3"
        raise ConfigError(message)
    word = "Llama" if family == "llama" else "Qwen3"
    return f"{'Eagle3' if kind == 'eagle3' else 'Peagle'}{word}ForCausalLM"
