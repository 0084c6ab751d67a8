"""Folders that look like models with MTP modules: config.json, and names of tensors, of which few have a true shape."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo

LAYERS = 3
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "vocab_size": 32,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 64,
}
OWN_TENSORS = (
    "model.embed_tokens.weight",
    "lm_head.weight",
    *(f"model.layers.{i}.input_layernorm.weight" for i in range(LAYERS)),
)


def config(kind: str, name: str, **keys: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [name], **SIZES, **keys}


DEEPSEEK = config("deepseek_v3", "DeepseekV3ForCausalLM", num_nextn_predict_layers=1)
LLAMA = config("llama", "LlamaForCausalLM")
# Families that draft: their config.json, and the tensors of one module that tell them from a model without.
QWEN = (
    *(f"mtp.{name}.weight" for name in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")),
    "mtp.layers.0.input_layernorm.weight",
)
DRAFTING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "deepseek": (DEEPSEEK, tuple(f"model.layers.3.{name}.weight" for name in ("enorm", "hnorm", "eh_proj"))),
    "glm4_moe": (
        config("glm4_moe", "Glm4MoeForCausalLM", num_nextn_predict_layers=1),
        tuple(f"model.layers.3.{name}.weight" for name in ("enorm", "hnorm", "eh_proj")),
    ),
    "mimo": (
        config("mimo", "MiMoForCausalLM", num_nextn_predict_layers=1),
        tuple(f"model.mtp_layers.0.{name}.weight" for name in ("token_layernorm", "hidden_layernorm", "input_proj")),
    ),
    "ernie": (
        config("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", num_nextn_predict_layers=1),
        (
            "model.mtp_emb_norm.0.weight",
            "model.mtp_hidden_norm.0.weight",
            "model.mtp_linear_proj.0.weight",
            "model.mtp_block.0.input_layernorm.weight",
        ),
    ),
    "longcat": (
        config("longcat_flash", "LongcatFlashForCausalLM"),
        (
            "model.mtp.norm.weight",
            "model.mtp.layers.0.enorm.m.weight",
            "model.mtp.layers.0.hnorm.m.weight",
            "model.mtp.layers.0.eh_proj.weight",
        ),
    ),
    "qwen3_next": (config("qwen3_next", "Qwen3NextForCausalLM", num_nextn_predict_layers=1), QWEN),
    "qwen3_5": (config("qwen3_5_text", "Qwen3_5ForCausalLM", mtp_num_hidden_layers=1), QWEN),
    "qwen3_5_moe": (config("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", mtp_num_hidden_layers=1), QWEN),
}


def _shape(name: str, width: int) -> tuple[int, ...]:
    if name.endswith(("eh_proj.weight", "input_proj.weight", "mtp.fc.weight")):
        return width, 2 * width
    return (width,) if "norm" in name else (1,)


def folder_of(folder: Path, settings: dict[str, Any], names: Iterable[str] = ()) -> str:
    """Write a folder and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    width = settings.get("hidden_size", SIZES["hidden_size"])
    tensors = {name: np.zeros(_shape(name, width), np.float32) for name in (*OWN_TENSORS, *names)}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def model_of(folder: Path, family: str, **keys: Any) -> str:
    """Write a model of a family that drafts, with one module."""
    settings, names = DRAFTING[family]
    return folder_of(folder, {**settings, **keys}, names)


def deepseek(folder: Path, modules: int, layers: int = LAYERS, **keys: Any) -> str:
    """Write a DeepSeek V3 whose config.json gives the number of modules, all of which are there."""
    rows = range(layers, layers + modules)
    names = [f"model.layers.{row}.{name}.weight" for row in rows for name in ("enorm", "hnorm", "eh_proj")]
    keys = {"num_nextn_predict_layers": modules, "num_hidden_layers": layers, **keys}
    return folder_of(folder, {**DEEPSEEK, **keys}, names)


def resolve_config(target: str, **keys: Any) -> ResolvedConfig:
    """Resolve a configuration of the method for a target in a folder."""
    info = TargetInfo.from_folder(target)
    return resolve({"method": "mtp", **keys}, info, Registry(Catalog.discover(), strict=True))


def reasons(resolved: ResolvedConfig) -> dict[str, str]:
    """Return the last reason of each decision."""
    return {decision.key: decision.reason for decision in resolved.decisions}
