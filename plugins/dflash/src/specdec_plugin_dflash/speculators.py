"""Configurations of DFlash and DSpark heads in other forms, turned into plain ones: speculators', and bare names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.errors import ConfigError
from specdec_nn.checkpoints.speculators import TYPE, base_config, is_of_type, mask_token
from specdec_plugin_dflash.names import DFLASH, DSPARK

XPRESS: Final = "xpress"  # a DFlash head with a refiner behind it, which `refusing` rules out
METHODS: Final = {"dflash": DFLASH, "dflash2": DFLASH, "dspark": DSPARK, XPRESS: DFLASH}
SECOND_KEYS: Final = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
SPARK_KEYS: Final = (
    "mask_token_id",
    "markov_rank",
    "markov_head_type",
    "block_size",
    "enable_confidence_head",
    "confidence_head_with_markov",
    "use_aux_hidden_state",
)
IDS: Final = "aux_hidden_state_layer_ids"
OWN_NAMES: Final = ("MuseGlimmerAssistantModel", "LiLiCorrDraftModel")


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is in the speculators format, of a type that belongs here."""
    return is_of_type(config, METHODS)


def patch_of(method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the keys that differ from those of a plain configuration of the method, None if none does."""
    return converted(hf_config) if is_speculators(hf_config) else renamed(method, hf_config)


def converted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain configuration that one of this format stands for (docs/checkpoints.md).

    Raises ConfigError naming the key that is missing or wrong.
    """
    base, kind = base_config(config), config[TYPE]
    ids = config.get(IDS)
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        message = f"a checkpoint of type {kind} needs {IDS}, a list of layers, got {ids!r}"
        raise ConfigError(message)
    plain: dict[str, Any] = {**base, "eagle_aux_hidden_state_layer_ids": ids}
    plain |= {key: config[key] for key in ("draft_vocab_size", "target_hidden_size") if config.get(key) is not None}
    return plain | (_spark(config, ids) if kind == DSPARK else _flash(config, ids))


def _flash(config: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    both_ways = config.get("sliding_window_non_causal")
    section = {
        "mask_token_id": mask_token(config),
        "target_layer_ids": [i - 1 for i in ids],
        "sample_from_anchor": bool(config.get("sample_from_anchor")),
        "causal": both_ways is not None and not both_ways,
    }
    section |= {key: config[key] for key in SECOND_KEYS if config.get(key) is not None}
    name = "DFlash2DraftModel" if config[TYPE] == "dflash2" else "DFlashDraftModel"
    return {"architectures": [name], "dflash_config": section}


def _spark(config: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    from_anchor = bool(config.get("sample_from_anchor"))
    omni = "Qwen3OmniDSparkModel"
    plain = {
        "architectures": [omni if omni in (config.get("architectures") or ()) else "Qwen3DSparkModel"],
        "sample_from_anchor": from_anchor,
        "dspark_bonus_anchor": not from_anchor,
        "target_layer_ids": [i - 1 for i in ids],
    }
    if config.get("sliding_window_non_causal"):
        plain["is_causal"] = False
    return plain | {key: config[key] for key in SPARK_KEYS if config.get(key) is not None}


def renamed(method: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the name that a plain configuration's architecture has among heads, None if it has it already."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name is None:
        return None
    if method == DSPARK:
        is_dense = name == "DSparkDraftModel" and config.get("model_type") == "qwen3"
        return {"architectures": ["Qwen3DSparkModel"]} if is_dense else None
    if name.startswith("DFlash") or name.endswith("DFlash") or name in OWN_NAMES:
        return None
    return {"architectures": [f"DFlash{name}"]}
