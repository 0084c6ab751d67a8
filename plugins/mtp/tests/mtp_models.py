"""Tiny random models of the families that draft, saved as their checkpoints are: MTP tensors beside the model's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, HEADS, VOCAB, LAYERS = 32, 4, 128, 2
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Shapes = dict[str, tuple[int, ...]]

BODY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 160,
}
GROUPED = {**BODY, "num_hidden_layers": LAYERS, "num_key_value_heads": 2, "intermediate_size": 48}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
EXPERTS = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}


def linear(name: str, out: int, width: int, *, bias: bool = False) -> Shapes:
    return {f"{name}.weight": (out, width)} | ({f"{name}.bias": (out,)} if bias else {})


def mlp(name: str, inner: int) -> Shapes:
    return {
        **linear(f"{name}.gate_proj", inner, HIDDEN),
        **linear(f"{name}.up_proj", inner, HIDDEN),
        **linear(f"{name}.down_proj", HIDDEN, inner),
    }


def norms(*names: str, width: int = HIDDEN) -> Shapes:
    return {f"{name}.weight": (width,) for name in names}


def latent_attention(name: str) -> Shapes:
    heads = HEADS * (LATENT["qk_nope_head_dim"] + LATENT["qk_rope_head_dim"])
    return {
        **linear(f"{name}.q_a_proj", LATENT["q_lora_rank"], HIDDEN),
        **norms(f"{name}.q_a_layernorm", width=LATENT["q_lora_rank"]),
        **linear(f"{name}.q_b_proj", heads, LATENT["q_lora_rank"]),
        **linear(f"{name}.kv_a_proj_with_mqa", LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"], HIDDEN),
        **norms(f"{name}.kv_a_layernorm", width=LATENT["kv_lora_rank"]),
        **linear(
            f"{name}.kv_b_proj", HEADS * (LATENT["qk_nope_head_dim"] + LATENT["v_head_dim"]), LATENT["kv_lora_rank"]
        ),
        **linear(f"{name}.o_proj", HIDDEN, HEADS * LATENT["v_head_dim"]),
    }


def grouped_attention(name: str, head_dim: int, *, bias: bool, qk_norm: bool) -> Shapes:
    return {
        **linear(f"{name}.q_proj", HEADS * head_dim, HIDDEN, bias=bias),
        **linear(f"{name}.k_proj", 2 * head_dim, HIDDEN, bias=bias),
        **linear(f"{name}.v_proj", 2 * head_dim, HIDDEN, bias=bias),
        **linear(f"{name}.o_proj", HIDDEN, HEADS * head_dim),
        **(norms(f"{name}.q_norm", f"{name}.k_norm", width=head_dim) if qk_norm else {}),
    }


def experts(name: str) -> Shapes:
    inner = EXPERTS["moe_intermediate_size"]
    single = {k: v for e in range(4) for k, v in mlp(f"{name}.experts.{e}", inner).items()}
    gate = {f"{name}.gate.weight": (4, HIDDEN), f"{name}.gate.e_score_correction_bias": (4,)}
    return {**single, **gate, **mlp(f"{name}.shared_experts", inner)}


def behind_the_layers(attention: Shapes, i: int) -> Shapes:
    at = f"model.layers.{LAYERS + i}."
    inside = {
        **norms("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm"),
        **linear("eh_proj", HIDDEN, 2 * HIDDEN),
        **attention,
        **experts("mlp"),
    }
    return {at + name: shape for name, shape in inside.items()}


def deepseek(i: int) -> Shapes:
    return behind_the_layers(latent_attention("self_attn"), i)


def glm4_moe(i: int) -> Shapes:
    return behind_the_layers(grouped_attention("self_attn", 8, bias=True, qk_norm=True), i)


def mimo(i: int) -> Shapes:
    names = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_layernorm", "post_attention_layernorm")
    inside = {
        **norms(*names),
        **linear("input_proj", HIDDEN, 2 * HIDDEN),
        **grouped_attention("self_attn", 8, bias=True, qk_norm=False),
        **mlp("mlp", 48),
    }
    return {f"model.mtp_layers.{i}.{name}": shape for name, shape in inside.items()}


def ernie(i: int) -> Shapes:
    inside = {
        **norms(*(f"mtp_block.{i}.{name}" for name in ("input_layernorm", "post_attention_layernorm"))),
        **norms(f"mtp_emb_norm.{i}", f"mtp_hidden_norm.{i}"),
        **linear(f"mtp_linear_proj.{i}", HIDDEN, 2 * HIDDEN),
        **grouped_attention(f"mtp_block.{i}.self_attn", 8, bias=False, qk_norm=False),
        **mlp(f"mtp_block.{i}.mlp", 48),
    }
    return {f"model.{name}": shape for name, shape in inside.items()}


def longcat(i: int) -> Shapes:
    at = f"layers.{i}."
    inside = {
        **norms("norm", *(at + name for name in ("enorm.m", "hnorm.m", "input_layernorm", "post_attention_layernorm"))),
        **linear(f"{at}eh_proj", HIDDEN, 2 * HIDDEN),
        **latent_attention(f"{at}self_attn"),
        **mlp(f"{at}transformer_layer.mlp", 40),
    }
    return {f"model.mtp.{name}": shape for name, shape in inside.items()}


def of_qwen(mixer: Shapes, i: int) -> Shapes:
    """Output-gated attention: a head has as many rows for its gate as for its query."""
    inside = {
        **norms("input_layernorm", "post_attention_layernorm"),
        **grouped_attention("self_attn", 8, bias=False, qk_norm=True),
        **linear("self_attn.q_proj", 2 * HEADS * 8, HIDDEN),
        **mixer,
    }
    around = {**norms("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), **linear("fc", HIDDEN, 2 * HIDDEN)}
    named = around | {f"layers.{i}.{name}": shape for name, shape in inside.items()}
    return {f"mtp.{name}": shape for name, shape in named.items()}


def qwen3_next(i: int) -> Shapes:
    single = {k: v for e in range(4) for k, v in mlp(f"mlp.experts.{e}", 16).items()}
    gates = {**linear("mlp.gate", 4, HIDDEN), **linear("mlp.shared_expert_gate", 1, HIDDEN)}
    return of_qwen({**single, **gates, **mlp("mlp.shared_expert", 24)}, i)


def qwen3_5(i: int) -> Shapes:
    return of_qwen(mlp("mlp", 48), i)


@dataclass(frozen=True)
class Model:
    """A family: transformers' config class and its keys, what config.json has besides, and a module's tensors.

    `counts` is the key of config.json that has the number of modules.
    """

    config: str
    keys: Mapping[str, Any]
    says: Mapping[str, Any]
    module: Callable[[int], Shapes]
    counts: str = "num_nextn_predict_layers"


ROPE = {"rope_type": "default", "rope_theta": 100.0}
HYBRID = {
    **GROUPED,
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
}
SOFTMAX_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
MODELS: dict[str, Model] = {
    "deepseek": Model(
        "DeepseekV3Config",
        {
            **GROUPED,
            **LATENT,
            **EXPERTS,
            "num_key_value_heads": HEADS,
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": ROPE,
        },
        {},
        deepseek,
    ),
    "glm4_moe": Model(
        "Glm4MoeConfig",
        {
            **GROUPED,
            **EXPERTS,
            "head_dim": 8,
            "n_group": 1,
            "topk_group": 1,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
        },
        {},
        glm4_moe,
    ),
    "mimo": Model(
        "Qwen2Config",
        {**GROUPED, "rope_parameters": ROPE},
        {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]},
        mimo,
    ),
    "ernie": Model(
        "Ernie4_5_MoeConfig",
        {
            **GROUPED,
            "moe_intermediate_size": 16,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 0,
            "rope_parameters": ROPE,
        },
        {},
        ernie,
    ),
    "longcat": Model(
        "LongcatFlashConfig",
        {
            **BODY,
            **LATENT,
            "num_layers": LAYERS,
            "ffn_hidden_size": 40,
            "head_dim": LATENT["qk_rope_head_dim"],
            "moe_topk": 2,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": 16,
            "rope_parameters": ROPE,
        },
        {},
        longcat,
    ),
    "qwen3_next": Model("Qwen3NextConfig", {**HYBRID, **SOFTMAX_EXPERTS, "norm_topk_prob": True}, {}, qwen3_next),
    "qwen3_5": Model("Qwen3_5TextConfig", HYBRID, {}, qwen3_5, "mtp_num_hidden_layers"),
    "qwen3_5_moe": Model(
        "Qwen3_5MoeTextConfig", {**HYBRID, **SOFTMAX_EXPERTS}, {}, qwen3_next, "mtp_num_hidden_layers"
    ),
}


def drawn(name: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Return a tensor that depends on its name: matrices of unit gain or more, vectors around 1 or, biases, 0."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    values = torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(digest, "little")))
    if len(shape) == 1:
        return 0.2 * values + (0.0 if name.endswith("bias") else 1.0)
    gain = 4.0 if name.startswith("lm_head") else 0.6 if "embed_tokens" in name else 1.5
    return values * gain / (1.0 if "embed_tokens" in name else shape[-1] ** 0.5)


@cache
def target(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return the family's model, without modules."""
    model = MODELS[family]
    config = getattr(transformers, model.config)(**model.keys)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(drawn(name, tuple(parameter.shape)))
    return made.eval()


def module_tensors(family: str, modules: int = 1, seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors of all modules under the names of the checkpoint."""
    shapes = {name: shape for i in range(modules) for name, shape in MODELS[family].module(i).items()}
    return {name: drawn(name, shape, seed) for name, shape in shapes.items()}


def save(folder: Path, family: str, tensors: Mapping[str, Tensor], modules: int = 1, **says: Any) -> str:
    """Write the family's model and the tensors of modules, in two files and an index; return the folder."""
    target(family).save_pretrained(folder)
    (folder / "model.safetensors").rename(folder / SHARDS[0])
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / SHARDS[1])
    own = _names(folder / SHARDS[0])
    places = {**dict.fromkeys(own, SHARDS[0]), **dict.fromkeys(tensors, SHARDS[1])}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config = json.loads((folder / "config.json").read_text())
    config = {**config, MODELS[family].counts: modules, **MODELS[family].says, **says}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def _names(file: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        return list(content.keys())
