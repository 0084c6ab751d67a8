"""The parts of a config.json in the speculators format that all methods read alike; it knows no method. No torch.

The format is that of https://github.com/vllm-project/speculators: `speculators_model_type` names the method,
`transformer_layer_config` is the configuration of the head's layers, and `speculators_config` names the target and
how many tokens to draft.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource, TargetSwap

SECTION: Final = "speculators_config"
TYPE: Final = "speculators_model_type"
BASE: Final = "transformer_layer_config"

Config = Mapping[str, Any]


def is_of_type(config: Config, types: Collection[str]) -> bool:
    """Return whether a configuration is in this format, and of one of these types."""
    return config.get(TYPE) in types


def base_config(config: Config) -> Config:
    """Return the configuration of the head's layers; raises ConfigError if there is none."""
    base = config.get(BASE)
    if not isinstance(base, Mapping):
        message = f"{BASE} must be the configuration of the head's layers, got {type(base).__name__}"
        raise ConfigError(message)
    return base


def mask_token(config: Config) -> int:
    """Return `mask_token_id`; raises ConfigError if the checkpoint names none."""
    token = config.get("mask_token_id")
    if type(token) is not int:
        message = f"a checkpoint of type {config.get(TYPE)} needs a mask_token_id, got {token!r}"
        raise ConfigError(message)
    return token


def proposed_tokens(config: Config) -> int | None:
    """Return how many tokens the first proposal method of the checkpoint drafts, None if it gives none."""
    section = config.get(SECTION)
    methods = section.get("proposal_methods") if isinstance(section, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], Mapping) else {}
    tokens = first.get("speculative_tokens")
    return tokens if type(tokens) is int and tokens > 0 else None


def verifier_of(config: Config) -> str | None:
    """Return the name of the target that the checkpoint was made for, None if it gives none."""
    section = config.get(SECTION)
    verifier = section.get("verifier") if isinstance(section, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return name if isinstance(name, str) and name else None


def swap(source: DraftSource, methods: Mapping[str, str]) -> TargetSwap | None:
    """Return the target and the draft that a checkpoint given as the model stands for, None for other checkpoints.

    `methods` has the method of each type. Raises ConfigError if the checkpoint does not name its target.
    """
    config = source.hf_config
    if not is_of_type(config, methods):
        return None
    verifier, kind = verifier_of(config), config[TYPE]
    if verifier is None:
        message = f"{source.model!r} does not name its target ({SECTION}.verifier.name_or_path)"
        raise ConfigError(message)
    keys: dict[str, object] = {"method": methods[kind], "model": source.model}
    return TargetSwap(model=verifier, speculative_config=keys, reason=f"{TYPE} {kind!r}")
