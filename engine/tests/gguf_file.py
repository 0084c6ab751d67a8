"""Writes a tiny Llama and its tokenizer as a .gguf file, the way llama.cpp's converter lays it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

# Name in transformers, name in the file; norms and embeddings are never quantised here.
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(file: Path, model: Any, tokenizer: Any, *, quantised: bool = False) -> None:
    """Write a LlamaForCausalLM with untied embeddings; `quantised` puts its linear layers in Q8_0."""
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer)
    weights = dict(model.named_parameters())
    _add(writer, "token_embd.weight", weights["model.embed_tokens.weight"])
    _add(writer, "output_norm.weight", weights["model.norm.weight"])
    _add(writer, "output.weight", weights["lm_head.weight"])
    for layer in range(config.num_hidden_layers):
        for theirs, name in LAYER.items():
            weight = weights[f"model.layers.{layer}.{theirs}.weight"].detach()
            if name in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if name == "attn_q" else config.num_key_value_heads
                weight = _permuted(weight, heads)
            _add(writer, f"blk.{layer}.{name}.weight", weight, quantised=quantised and weight.dim() == 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))])
    special = set(tokenizer.get_added_vocab().values())
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if i in special else kinds.NORMAL for i in range(len(tokenizer))])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)


def _permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Turn the halves of rotary pairs, as transformers has them, into neighbours, as the file has them."""
    return weight.view(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def _add(writer: gguf.GGUFWriter, name: str, weight: torch.Tensor, *, quantised: bool = False) -> None:
    data = np.ascontiguousarray(weight.detach().float().numpy())
    if quantised:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, data)
