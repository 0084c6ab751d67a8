"""The speculators checkpoint format, turned into a plain EAGLE-3 configuration; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.errors import ConfigError

SECTION: Final = "speculators_config"
TYPE: Final = "speculators_model_type"
BASE: Final = "transformer_layer_config"
EAGLE_3_TYPES: Final = ("eagle3", "peagle")
SWITCHES: Final = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Say whether a configuration is in this format, of a type that is an EAGLE head."""
    return SECTION in config and config.get(TYPE) in EAGLE_3_TYPES


def proposed_tokens(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens the checkpoint asks to be drafted, None if it does not say."""
    section = config.get(SECTION)
    methods = section.get("proposal_methods") if isinstance(section, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], Mapping) else {}
    tokens = first.get("speculative_tokens")
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else None


def verifier_of(config: Mapping[str, Any]) -> str | None:
    """Return the name of the target that the checkpoint was made for, None if it does not say."""
    section = config.get(SECTION)
    verifier = section.get("verifier") if isinstance(section, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return name if isinstance(name, str) and name else None


def converted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain configuration that this one stands for; top-level keys keep their places beside it.

    The same switch that is missing means true in files of type eagle3 (`norm_before_residual`), and false in others.
    Raises ConfigError naming the key that is missing or wrong.
    """
    base = config.get(BASE)
    if not isinstance(base, Mapping):
        message = f"{BASE} must be the configuration of the head's block, got {type(base).__name__}"
        raise ConfigError(message)
    kind = config[TYPE]
    plain: dict[str, Any] = {**base, "architectures": [_architecture(kind, base)]}
    for key in ("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids"):
        if config.get(key):
            plain[key] = config[key]
    for key in SWITCHES:
        default = kind == "eagle3" and key == "norm_before_residual"
        plain[key] = bool(default if config.get(key) is None else config[key])
    if kind == "peagle":
        if not isinstance(config.get("mask_token_id"), int):
            message = f"a checkpoint of type peagle needs a mask_token_id, got {config.get('mask_token_id')!r}"
            raise ConfigError(message)
        plain["pard_token"] = config["mask_token_id"]
    return plain


def _architecture(kind: str, base: Mapping[str, Any]) -> str:
    family = str(base.get("model_type") or "llama")
    if family not in ("llama", "qwen3"):
        message = f"{BASE}.model_type is {family!r}; heads of this format have blocks of llama or qwen3"
        raise ConfigError(message)
    word = "Llama" if family == "llama" else "Qwen3"
    return f"{'Eagle3' if kind == 'eagle3' else 'Peagle'}{word}ForCausalLM"
