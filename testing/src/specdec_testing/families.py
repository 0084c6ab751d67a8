"""Tiny configurations of transformers' model families; knows names and sizes of configs, nothing of weights.

Every family is small (vocabulary 128, width 32, two or three layers, 256 positions) and keeps the trait it is listed
for: a sliding window shorter than the prompts of the tests, attention sinks, softcaps, latent attention, experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VOCAB: Final = 128
HIDDEN: Final = 32
HEADS: Final = 4
POSITIONS: Final = 256
WINDOW: Final = 16
EOS: Final = 2

Spec = tuple[str, Mapping[str, Any]]

_COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_BODY: Final[dict[str, Any]] = {
    **_COMMON,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
}
_GROUPED: Final[dict[str, Any]] = {**_BODY, "num_key_value_heads": 2}
_HEAD_DIM: Final[dict[str, Any]] = {**_GROUPED, "head_dim": 8}
_GPT: Final[dict[str, Any]] = {
    **_COMMON,
    "n_embd": HIDDEN,
    "n_layer": 2,
    "n_head": HEADS,
    "n_positions": POSITIONS,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_GEMMA: Final[dict[str, Any]] = {
    **_HEAD_DIM,
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_EXPERTS: Final[dict[str, Any]] = {"num_experts_per_tok": 2, "output_router_logits": False}

# Families that a host with a ragged flat forward through transformers' attention interface runs as they are.
RIGHT: Final[dict[str, Spec]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "gpt2": ("GPT2Config", _GPT),
    "qwen3": ("Qwen3Config", _HEAD_DIM),
    "gemma3": ("Gemma3TextConfig", _GEMMA),
    "mistral": ("MistralConfig", {**_HEAD_DIM, "sliding_window": WINDOW}),
    "gpt_oss": (
        "GptOssConfig",
        {
            **_HEAD_DIM,
            **_EXPERTS,
            "num_local_experts": 4,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "gemma2": ("Gemma2Config", {**_GEMMA, "final_logit_softcapping": 20.0, "attn_logit_softcapping": 5.0}),
    "opt": (
        "OPTConfig",
        {
            **_COMMON,
            "pad_token_id": 1,  # OPT's position table is offset by two, whatever the padding id is
            "hidden_size": HIDDEN,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "max_position_embeddings": POSITIONS,
            "word_embed_proj_dim": HIDDEN,
            "dropout": 0.0,
        },
    ),
    "phi": ("PhiConfig", {**_BODY, "num_key_value_heads": HEADS}),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **_BODY,
            "num_key_value_heads": HEADS,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}

# More that it runs as they are: mostly blocks like llama's, with a difference each.
SIMILAR: Final[dict[str, Spec]] = {
    "qwen2": ("Qwen2Config", _GROUPED),  # biases of queries, keys and values
    "smollm3": ("SmolLM3Config", {**_GROUPED, "no_rope_layers": [1, 0]}),  # a layer without rotary embedding
    "granite": (
        "GraniteConfig",
        {
            **_GROUPED,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.25,
            "logits_scaling": 2.0,
        },
    ),
    "gemma": ("GemmaConfig", _HEAD_DIM),  # a scaled embedding, norms of 1 + w
    "seed_oss": ("SeedOssConfig", _HEAD_DIM),
    "phi3": ("Phi3Config", _GROUPED),  # queries, keys and values in one product, gate and up in another
    "olmo2": ("Olmo2Config", _GROUPED),  # norms after attention and MLP alone, and over all heads
    "helium": ("HeliumConfig", _HEAD_DIM),  # heads turn in pairs of neighbours
    "ernie4_5": ("Ernie4_5Config", _HEAD_DIM),  # the same
    "stablelm": ("StableLmConfig", _GROUPED),  # layer norms
    "starcoder2": ("Starcoder2Config", _GROUPED),  # an MLP without a gate
}

_TOWER: Final[dict[str, Any]] = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "patch_size": 4}
_QWEN_TOWER: Final[dict[str, Any]] = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "depth": 1, "out_hidden_size": HIDDEN},
    **{"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1},
}
_UNTIED: Final[dict[str, Any]] = {"tie_word_embeddings": False}
_QWEN_IDS: Final[dict[str, Any]] = {
    **{"image_token_id": 120, "video_token_id": 121, "vision_start_token_id": 122, "vision_end_token_id": 123}
}
_MROPE: Final[dict[str, Any]] = {"rope_type": "default", "rope_theta": 10000.0}

# Models of text and images, of which such a host runs the language model.
MULTIMODAL: Final[dict[str, Spec]] = {
    "gemma3_vl": (
        "Gemma3Config",
        {
            **_UNTIED,
            "text_config": _GEMMA,
            "vision_config": {**_TOWER, "num_hidden_layers": 1, "image_size": 16},
            "image_token_index": VOCAB,  # has no row in the embedding, as in released models
            "mm_tokens_per_image": 4,
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        {
            **_UNTIED,
            **_QWEN_IDS,
            "text_config": {**_GROUPED, "rope_parameters": {**_MROPE, "mrope_section": [1, 1, 2]}},
            "vision_config": {**_QWEN_TOWER, "fullatt_block_indexes": [0], "window_size": 16},
        },
    ),
    "qwen3_vl": (
        "Qwen3VLConfig",
        {
            **_UNTIED,
            **_QWEN_IDS,
            "text_config": {
                **_HEAD_DIM,
                "rope_parameters": {**_MROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
            },
            "vision_config": {**_QWEN_TOWER, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        },
    ),
    "mistral3": (
        "Mistral3Config",
        {
            **_UNTIED,
            "text_config": {"model_type": "mistral", **_HEAD_DIM, "sliding_window": WINDOW},
            "vision_config": {"model_type": "pixtral", **_TOWER, "num_hidden_layers": 1, "image_size": 16},
            "image_token_index": 10,
        },
    ),
    "llava": (
        "LlavaConfig",
        {
            **_UNTIED,
            "text_config": {"model_type": "llama", **_GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **_TOWER, "num_hidden_layers": 2, "image_size": 16},
            "image_token_index": 120,
        },
    ),
}

# Families that such a host would run silently wrong: they bypass the interface, call it twice a layer, hide a chunk
# size from it, or carry a state across the flat batch.
WRONG: Final[dict[str, Spec]] = {
    "gptj": ("GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "codegen": ("CodeGenConfig", {**_GPT, "rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            **_COMMON,
            "hidden_size": HIDDEN,
            "num_layers": 2,
            "num_heads": HEADS,
            "max_position_embeddings": POSITIONS,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
    ),
    "bloom": ("BloomConfig", {**_COMMON, "hidden_size": HIDDEN, "n_layer": 2, "n_head": HEADS}),
    "falcon": (
        "FalconConfig",
        {
            **_COMMON,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "max_position_embeddings": POSITIONS,
        },
    ),
    "mpt": ("MptConfig", {**_COMMON, "d_model": HIDDEN, "n_layers": 2, "n_heads": HEADS, "max_seq_len": POSITIONS}),
    "xglm": (
        "XGLMConfig",
        {
            **_COMMON,
            "pad_token_id": 0,
            "d_model": HIDDEN,
            "ffn_dim": 64,
            "num_layers": 2,
            "attention_heads": HEADS,
            "max_position_embeddings": POSITIONS,
        },
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            **_HEAD_DIM,
            **_EXPERTS,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "attention_chunk_size": WINDOW,
            "no_rope_layer_interval": 2,
        },
    ),
    "diffllama": ("DiffLlamaConfig", {**_GROUPED, "head_dim": 8}),
    # Its delta rule has a decay for each channel, and a function of its own for it.
    "kimi_linear": ("KimiLinearConfig", {**_GROUPED, "num_experts": 4, "num_experts_per_token": 2}),
}

_THREE: Final = ["linear_attention", "full_attention", "linear_attention"]
_DELTA: Final[dict[str, Any]] = {
    **_HEAD_DIM,
    "num_hidden_layers": 3,
    "layer_types": _THREE,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MAMBA_2: Final[dict[str, Any]] = {
    **_GROUPED,
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}

# Families whose layers keep states beside keys and values, or instead of them.
HYBRID: Final[dict[str, Spec]] = {
    "lfm2": (
        "Lfm2Config",
        {
            **_GROUPED,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {**_DELTA, **_EXPERTS, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4},
    ),
    "qwen3_5": ("Qwen3_5TextConfig", _DELTA),
    "jamba": (
        "JambaConfig",
        {
            **_GROUPED,
            **_EXPERTS,
            "num_hidden_layers": 3,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
        },
    ),
    "falcon_h1": ("FalconH1Config", {**_MAMBA_2, "num_hidden_layers": 2, "mamba_n_heads": 4, "mamba_d_ssm": 32}),
    "bamba": ("BambaConfig", {**_MAMBA_2, "attn_layer_indices": [1]}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {
            **_MAMBA_2,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
        },
    ),
    "zamba2": (
        "Zamba2Config",
        {
            **_BODY,
            "num_key_value_heads": HEADS,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "mamba_d_state": 8,
            "mamba_ngroups": 2,
            "n_mamba_heads": 8,
            "chunk_size": 16,
            "num_mem_blocks": 1,
        },
    ),
    "mamba": ("MambaConfig", {**_COMMON, "hidden_size": HIDDEN, "num_hidden_layers": 2, "state_size": 8}),
    "olmo_hybrid": ("OlmoHybridConfig", _DELTA),  # queries, keys and values have convolutions of their own
}

FAMILIES: Final[dict[str, Spec]] = {**RIGHT, **SIMILAR, **MULTIMODAL, **HYBRID, **WRONG}
