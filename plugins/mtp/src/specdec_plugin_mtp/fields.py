"""Keys that single families compute for their MTP config: one small function each. They change nothing in place."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from specdec_core.errors import ConfigError
from specdec_plugin_mtp.family import Config, is_count, look_up, model_type, text_of

INDEX_SHARE = "index_share_for_mtp_iteration"


def has_modules(config: Config) -> bool:
    """Return whether a Nemotron-H file counts modules; a converted one always does."""
    return model_type(config) == "nemotron_h_mtp" or is_count(config.get("num_nextn_predict_layers"))


def mtp_layer_types(config: Config, modules: int | None) -> Config:
    """Put the modules' layer types behind those of the model's own layers."""
    given = config.get("mtp_layer_types")
    kinds = ["sliding_attention"] * (modules or 0) if given is None else list(given)
    if len(kinds) != modules:
        message = f"config.json has {len(kinds)} mtp_layer_types for {modules} MTP modules (num_nextn_predict_layers)"
        raise ConfigError(message)
    return {"layer_types": [*(config.get("layer_types") or ()), *kinds]}


def hyper_connections(config: Config, modules: int | None) -> Config:
    """Return the number of residual streams under the name that MTP classes use."""
    count: Any = text_of(config).get("hc_count")
    try:
        return {"hc_mult": int(count), **shared_indices(config, modules)}
    except (TypeError, ValueError) as error:
        message = f"config.json must have its number of residual streams as hc_count, got {count!r}"
        raise ConfigError(message) from error


def shared_indices(config: Config, modules: int | None) -> Config:
    """Return whether the top-k indices of sparse attention are shared by the drafts of a step."""
    return {INDEX_SHARE: text_of(config).get(INDEX_SHARE, False)}


def by_text_type(config: Config, modules: int | None) -> Config:
    """Return the architecture for experts or without, as the text model is."""
    experts = look_up(config, "text_config.model_type") == "qwen3_5_moe_text"
    return {"architectures": ["Qwen3_5MoeMTP" if experts else "Qwen3_5MTP"]}


def experts_of_modules(config: Config, modules: int | None) -> Config:
    """Give the text model the modules' own numbers of experts."""
    given = config.get("text_config")
    text: dict[str, Any] = copy.deepcopy(dict(given)) if isinstance(given, Mapping) else {}
    text["model_type"] = "qwen3_5_moe_text"
    for key in ("num_experts", "num_experts_per_tok"):
        if f"mtp_{key}" not in text:
            message = f"config.json must have the number of experts of its MTP modules: no text_config.mtp_{key}"
            raise ConfigError(message)
        text[key] = text[f"mtp_{key}"]
    return {"text_config": text}


def from_mtp_config(config: Config, modules: int | None) -> Config:
    """Return what mtp_config has of the modules."""
    said = config["mtp_config"]
    return {
        "num_nextn_predict_layers": modules,
        "chain_hidden_post_norm": said.get("chain_hidden_post_norm", False),
        "local_layer_ids": copy.deepcopy(said.get("local_layer_ids", [])),
    }


def own_embeddings(config: Config) -> str | None:
    """Return what to report of modules that do not read the target's embedding, None if they do."""
    if not config.get("mtp_use_dedicated_embeddings"):
        return None
    return "its modules have an embedding of their own (mtp_use_dedicated_embeddings), and here they read the target's"


def no_shared_layers(config: Config, modules: int | None) -> Config:
    """Say that no layer of an assistant takes keys and values from another of its own."""
    text = config.get("text_config")
    if not isinstance(text, Mapping) or "num_kv_shared_layers" not in text:
        return {}
    return {"text_config": {**copy.deepcopy(dict(text)), "num_kv_shared_layers": 0}}
