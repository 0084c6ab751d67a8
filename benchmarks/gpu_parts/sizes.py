"""Real sizes and those of a dry run; the random target, made on its device, with greedy text of clear margins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

EMBEDDING_STD, MATRIX_GAIN, HEAD_GAIN = 0.5, 2.0, 4.0


@dataclass(frozen=True)
class Sizes:
    """What is run.

    hidden .. vocab  of the target; `draft_vocab` of the head
    k, nodes         drafts of a chain, nodes of a tree
    tokens           ids of a timed answer
    batch            requests at one time in the parts that say so
    """

    hidden: int = 2048
    inner: int = 8192
    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 128256
    draft_vocab: int = 32000
    positions: int = 4096
    prompt: int = 64
    k: int = 5
    nodes: int = 32
    tokens: int = 384
    batch: int = 8
    dtype: torch.dtype = torch.bfloat16

    @property
    def forward_bytes(self) -> int:
        """Bytes of weights that one forward of one row reads: layers and head."""
        dims = self.hidden // self.heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * dims
        layer = attention + 3 * self.hidden * self.inner
        return (self.layers * layer + self.vocab * self.hidden) * self.dtype.itemsize


LARGE = Sizes()
SMALL = Sizes(
    hidden=32,
    inner=64,
    layers=8,
    heads=2,
    kv_heads=1,
    vocab=64,
    draft_vocab=32,
    positions=128,
    prompt=6,
    k=3,
    nodes=6,
    tokens=8,
    batch=2,
    dtype=torch.float32,
)


def target(sizes: Sizes, device: torch.device) -> Any:
    """Return a random Llama, drawn on its device: every matrix with some gain, so that its text is varied."""
    config = LlamaConfig(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.positions,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=sizes.dtype)
    generator = torch.Generator(device).manual_seed(0)
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            gain = HEAD_GAIN if parameter is head else MATRIX_GAIN
            if parameter.ndim > 1:
                std = EMBEDDING_STD if parameter is embedding else gain * parameter.shape[1] ** -0.5
                parameter.normal_(0.0, std, generator=generator)
    return model.requires_grad_(False).eval()


def head(sizes: Sizes, folder: Path) -> str:
    """Write an EAGLE-3 head of the target's shape with random weights, and return its folder."""
    generator = torch.Generator().manual_seed(1)
    width, dims = sizes.hidden, sizes.hidden // sizes.heads
    shapes = {
        "fc": (width, 3 * width),
        "midlayer.self_attn.q_proj": (width, 2 * width),
        "midlayer.self_attn.k_proj": (sizes.kv_heads * dims, 2 * width),
        "midlayer.self_attn.v_proj": (sizes.kv_heads * dims, 2 * width),
        "midlayer.self_attn.o_proj": (width, width),
        "midlayer.mlp.gate_proj": (sizes.inner, width),
        "midlayer.mlp.up_proj": (sizes.inner, width),
        "midlayer.mlp.down_proj": (width, sizes.inner),
        "lm_head": (sizes.draft_vocab, width),
    }
    tensors = {
        f"{name}.weight": (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(sizes.dtype)
        for name, shape in shapes.items()
    }
    for name in ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = torch.ones(width, dtype=sizes.dtype)
    step = sizes.vocab // sizes.draft_vocab
    tensors["d2t"] = torch.arange(sizes.draft_vocab) * (step - 1)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "intermediate_size": sizes.inner,
        "rms_norm_eps": 1e-6,
        "draft_vocab_size": sizes.draft_vocab,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
