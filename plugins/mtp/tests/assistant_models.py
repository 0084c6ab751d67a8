"""Tiny random Gemma 4 targets, and assistants for them as they are published; reads nothing."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import Gemma4TextConfig
from transformers.models.gemma4_assistant.configuration_gemma4_assistant import Gemma4AssistantConfig
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import Gemma4AssistantForCausalLM

from specdec_testing import watching
from specdec_testing.layouts import Layout

VOCAB, WIDTH, OWN, WINDOW = 128, 32, 16, 8
SLIDING, FULL = "sliding_attention", "full_attention"
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": 256, "sliding_window": WINDOW, "pad_token_id": 0,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000000.0},
    },
}  # fmt: skip
TARGETS: dict[str, dict[str, Any]] = {
    "own keys": {"hidden_size_per_layer_input": 0},
    "shared keys": {"num_kv_shared_layers": 3, "global_head_dim": 16, "hidden_size_per_layer_input": 4},
    "keys as values": {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
}


def _drawn(model: torch.nn.Module, seed: int) -> None:
    """Give every parameter, and every scalar of a layer, random values that make varied text."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            normal = torch.randn(tensor.shape, generator=generator)
            if name.endswith("layer_scalar"):
                tensor.fill_(0.5 + 0.5 * float(torch.rand(1, generator=generator)))
            elif name.endswith("token_ordering"):
                tensor.copy_(torch.randperm(len(tensor), generator=generator))
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                tensor.copy_(0.6 + 0.1 * normal)  # scores are not scaled: larger ones would be chaos in bfloat16
            elif tensor.ndim == 1:
                tensor.add_(0.2 * normal)
            else:
                gain = 4.0 if name.endswith("lm_head.weight") else 0.5 if "embed_tokens" in name else 2.0
                tensor.copy_(gain * normal / (1.0 if "embed_tokens" in name else math.sqrt(tensor.shape[-1])))


@functools.lru_cache
def target(name: str = "own keys", dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Return a target of six layers, with a head of its own."""
    config = Gemma4TextConfig(
        **{
            **COMMON, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8, "layer_types": [SLIDING, SLIDING, FULL] * 2,
            "tie_word_embeddings": False, "eos_token_id": None, "bos_token_id": None,
            "vocab_size_per_layer_input": VOCAB, **TARGETS[name],
        }
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _drawn(model, 1)
    return model.to(dtype).eval()


def assistant(
    name: str = "own keys", *, seed: int = 2, centroids: bool = False, **text: Any
) -> Gemma4AssistantForCausalLM:
    """Return an assistant for a target."""
    config = Gemma4AssistantConfig(
        text_config={
            **COMMON, "model_type": "gemma4_text", "hidden_size": OWN, "intermediate_size": 24, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8,
            "global_head_dim": TARGETS[name].get("global_head_dim", 8), "layer_types": [SLIDING, SLIDING, FULL],
            "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, **text,
        },
        backbone_hidden_size=WIDTH, use_ordered_embeddings=centroids, num_centroids=16, centroid_intermediate_top_k=4,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = Gemma4AssistantForCausalLM(config)
    _drawn(model, seed)
    model.tie_weights()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=4.0 / math.sqrt(OWN), generator=torch.Generator().manual_seed(seed))
    return model.eval()


def stored(model: Gemma4AssistantForCausalLM) -> dict[str, Tensor]:
    """Return an assistant's tensors as they are in files: the head once, as the embedding."""
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


def settings(model: Gemma4AssistantForCausalLM) -> dict[str, Any]:
    """Return its config.json."""
    return json.loads(model.config.to_json_string(use_diff=False))


class AssistantLayout(Layout[Gemma4AssistantForCausalLM]):
    """An assistant as it is stored, with a generation_config.json where ids are never drafted."""

    suppressed: tuple[int, ...] = ()

    def save(self, folder: Path) -> str:
        """Write it, and return its folder."""
        made = super().save(folder)
        if self.suppressed:
            text = json.dumps({"suppress_tokens": list(self.suppressed)})
            (folder / "generation_config.json").write_text(text)
        return made


def layout(model: Gemma4AssistantForCausalLM, **changes: Any) -> AssistantLayout:
    """Return the layout of an assistant; `changes` are of config.json."""
    return AssistantLayout(model, stored(model), {**settings(model), **changes})


def over(name: str) -> tuple[Any, Any]:
    """Return `resolve_config` and `built` for a target."""
    return watching.over(target(name), method="mtp")


def written(folder: Path, made: Mapping[str, Any] | None = None) -> str:
    """Write the usual assistant, and return its folder."""
    return layout(assistant(**(made or {}))).save(folder)
