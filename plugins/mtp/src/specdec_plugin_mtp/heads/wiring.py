"""How the modules of each family that drafts are wired, one row each: names, parts and order; it reads no files.

Source: docs/checkpoints.md. A name stands without the prefix that the checkpoint has in front of it; {i} is the module,
{layer} = L + i in a model with L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

from torch import nn

from specdec_plugin_mtp import speculators
from specdec_plugin_mtp.families import (
    DEEPSEEK_V3,
    ERNIE,
    GLM4_MOE,
    LONGCAT,
    MIMO,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_NEXT,
)
from specdec_plugin_mtp.family import Family
from specdec_plugin_mtp.heads import blocks


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """One family.

    library         its module in transformers.models
    config, rotary  names of its classes there
    block           makes the decoder layer of a module from the library's classes, the config and the module's number

    embedding_norm, state_norm, projection  names of the parts in front of the block
    final_norm      that of the norm behind it, None where there is none
    prefix          what the names of the block's tensors begin with
    root            what the names of all modules' tensors begin with, where modules share parts; None elsewhere
    embedding, head  names of copies of the target's tables that a module may bring, None where it brings none

    state_first     the projection reads [state ; embedding], and not [embedding ; state]
    masks_first     the embedding in the row at position 0 is replaced by zeros, before its norm
    plus_one        the norms around the block scale by 1 + w, and not by w
    feeds           what the next row is fed with: the block's output "pre" or "post" the final norm
    turns           which dimensions of a head the stored weights turn together: as the library's layer has it
                    ("library"), or one of each half ("halves") where the library's layer turns neighbours
    """

    library: str
    config: str
    rotary: str
    block: Callable[[ModuleType, Any, int], nn.Module]
    embedding_norm: str
    state_norm: str
    projection: str
    final_norm: str | None
    prefix: str
    root: str | None = None
    embedding: str | None = None
    head: str | None = None
    state_first: bool = False
    masks_first: bool = True
    plus_one: bool = False
    feeds: Literal["pre", "post"] = "post"
    turns: Literal["library", "halves"] = "library"


_BEHIND_THE_LAYERS: Final[dict[str, Any]] = {
    "embedding_norm": "layers.{layer}.enorm",
    "state_norm": "layers.{layer}.hnorm",
    "projection": "layers.{layer}.eh_proj",
    "final_norm": "layers.{layer}.shared_head.norm",
    "prefix": "layers.{layer}.",
    "embedding": "layers.{layer}.embed_tokens",
    "head": "layers.{layer}.shared_head.head",
}

_MTP_LAYERS: Final[dict[str, Any]] = {
    "embedding_norm": "mtp_layers.{i}.token_layernorm",
    "state_norm": "mtp_layers.{i}.hidden_layernorm",
    "projection": "mtp_layers.{i}.input_proj",
    "final_norm": "mtp_layers.{i}.final_layernorm",
    "prefix": "mtp_layers.{i}.",
}
_SPECULATORS: Final[dict[str, Any]] = {**_MTP_LAYERS, "embedding": "embed_tokens", "masks_first": False}
_QWEN: Final[dict[str, Any]] = {
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "state_norm": "mtp.pre_fc_norm_hidden",
    "projection": "mtp.fc",
    "final_norm": "mtp.norm",
    "prefix": "mtp.layers.{i}.",
    "root": "mtp.",
    "masks_first": False,
    "plus_one": True,
}

WIRINGS: Final[Mapping[Family, Wiring]] = {
    DEEPSEEK_V3: Wiring(
        library="deepseek_v3",
        config="DeepseekV3Config",
        rotary="DeepseekV3RotaryEmbedding",
        block=blocks.deepseek_v3,
        **_BEHIND_THE_LAYERS,
    ),
    GLM4_MOE: Wiring(
        library="glm4_moe",
        config="Glm4MoeConfig",
        rotary="Glm4MoeRotaryEmbedding",
        block=blocks.glm4_moe,
        feeds="pre",
        **_BEHIND_THE_LAYERS,
    ),
    MIMO: Wiring(
        library="qwen2",
        config="Qwen2Config",
        rotary="Qwen2RotaryEmbedding",
        block=blocks.qwen2,
        state_first=True,
        **_MTP_LAYERS,
    ),
    ERNIE: Wiring(
        library="ernie4_5_moe",
        config="Ernie4_5_MoeConfig",
        rotary="Ernie4_5_MoeRotaryEmbedding",
        block=blocks.ernie4_5,
        embedding_norm="mtp_emb_norm.{i}",
        state_norm="mtp_hidden_norm.{i}",
        projection="mtp_linear_proj.{i}",
        final_norm=None,
        prefix="mtp_block.{i}.",
        feeds="pre",
        # The model's own layers turn neighbours. vLLM runs this block by halves, and no source says which is meant.
        turns="halves",
    ),
    LONGCAT: Wiring(
        library="longcat_flash",
        config="LongcatFlashConfig",
        rotary="LongcatFlashRotaryEmbedding",
        block=blocks.LongcatBlock,
        embedding_norm="mtp.layers.{i}.enorm.m",
        state_norm="mtp.layers.{i}.hnorm.m",
        projection="mtp.layers.{i}.eh_proj",
        final_norm="mtp.norm",
        prefix="mtp.layers.{i}.",
        embedding="mtp.embed_tokens",
        masks_first=False,
    ),
    QWEN3_NEXT: Wiring(
        library="qwen3_next",
        config="Qwen3NextConfig",
        rotary="Qwen3NextRotaryEmbedding",
        block=blocks.qwen3_next,
        **_QWEN,
    ),
    QWEN3_5: Wiring(
        library="qwen3_5",
        config="Qwen3_5TextConfig",
        rotary="Qwen3_5TextRotaryEmbedding",
        block=blocks.qwen3_5,
        **_QWEN,
    ),
    QWEN3_5_MOE: Wiring(
        library="qwen3_5_moe",
        config="Qwen3_5MoeTextConfig",
        rotary="Qwen3_5MoeTextRotaryEmbedding",
        block=blocks.qwen3_5_moe,
        **_QWEN,
    ),
    speculators.QWEN2: Wiring(
        library="qwen2",
        config="Qwen2Config",
        rotary="Qwen2RotaryEmbedding",
        block=blocks.qwen2,
        **_SPECULATORS,
    ),
    speculators.QWEN3: Wiring(
        library="qwen3",
        config="Qwen3Config",
        rotary="Qwen3RotaryEmbedding",
        block=blocks.qwen3,
        **_SPECULATORS,
    ),
}
