"""Every layout that Medusa heads come in: the heads, and the file that says the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from medusa_checkpoints import (
    OLD_CONFIG,
    VOCAB,
    WIDTH,
    Heads,
    cut,
    new_config,
    new_tensors,
    old_tensors,
    random_heads,
)
from torch import Tensor

from specdec_testing.layouts import Layout as Stored

Layout = Stored[Heads]


def layout(
    heads: Heads, tensors: Callable[[Heads], dict[str, Tensor]], settings: dict[str, Any] | None, file: str = ""
) -> Layout:
    return Layout(heads, tensors(heads), settings, file or "model.safetensors")


def within_target(heads: Heads) -> dict[str, Tensor]:
    """Return the tensors of a full model: the heads' under their prefix, beside those of a quantized language model."""
    names = ("layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight_scale", "embed_tokens.weight")
    other = {f"model.{name}": torch.zeros(2, 2) for name in names}
    return {**other, **old_tensors(heads, "medusa_head.")}


def full_size(heads: Heads) -> dict[str, Tensor]:
    """Return a map beside heads of the whole vocabulary, whose other rows are far larger."""
    tensors = new_tensors(heads)
    for k, head in enumerate(heads.heads):
        whole = torch.full((VOCAB, WIDTH), 50.0)
        whole[heads.ids] = head.output
        tensors[f"lm_heads.{k}.weight"] = whole
    return tensors


def padded(heads: Heads) -> dict[str, Tensor]:
    """Return heads whose rows of padding are far larger than all others."""
    tensors = new_tensors(heads)
    return {n: torch.cat([t, 50 * t[:8]]) if n.startswith("lm_heads.") else t for n, t in tensors.items()}


BIASED = random_heads(4, 2, seed=2, bias=True)
REPEATED = random_heads(3, 3, seed=3, bias=True, repeat_layer=True)
CUT = cut(random_heads(seed=8), 40)
ONE = random_heads(4, 1, seed=7, one_output=True)

LAYOUTS: dict[str, Layout] = {
    "old, torch file": layout(random_heads(4, 1, seed=1, bias=True), old_tensors, OLD_CONFIG, "medusa_lm_head.pt"),
    "old, without a config": layout(random_heads(5, seed=4, bias=True), old_tensors, None, "medusa_lm_head.pt"),
    "old, safetensors, no biases": layout(random_heads(seed=5), old_tensors, OLD_CONFIG),
    "old, two layers": layout(BIASED, old_tensors, {**OLD_CONFIG, "medusa_num_layers": 2}),
    "old, one layer three times": layout(REPEATED, old_tensors, {**OLD_CONFIG, "medusa_num_layers": 3}),
    "old, one layer three times and stored once": layout(
        REPEATED, lambda heads: old_tensors(heads, once=True), {**OLD_CONFIG, "medusa_num_heads": 3}
    ),
    "old, no layers": layout(random_heads(2, 0, seed=6), lambda h: old_tensors(h, "medusa_head."), OLD_CONFIG),
    "within the target": layout(
        random_heads(3, seed=9, bias=True),
        within_target,
        {
            "model_type": "llama",
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            **OLD_CONFIG,
        },
    ),
    "new": layout(random_heads(seed=10), new_tensors, new_config()),
    "new, prefix": layout(random_heads(seed=11), lambda heads: new_tensors(heads, "medusa_heads."), new_config()),
    "new, biases that the config denies": layout(
        BIASED, new_tensors, new_config(num_hidden_layers=2, medusa_fc_bias=False)
    ),
    "new, one output for all": layout(
        ONE, lambda heads: new_tensors(heads, outputs=1), new_config(original_lm_head=True)
    ),
    "new, scaled": layout(replace(random_heads(seed=12), logit_scale=0.25), new_tensors, new_config(logit_scale=0.25)),
    "new, cut": layout(CUT, new_tensors, new_config(truncated_vocab_size=40)),
    "new, cut by the map alone": layout(CUT, full_size, new_config(truncated_vocab_size=40)),
    "new, padded": layout(random_heads(seed=13), padded, new_config(vocab_size=VOCAB + 8)),
    "new, fewer ids": layout(random_heads(seed=14, rows=VOCAB - 8), new_tensors, new_config(vocab_size=VOCAB - 8)),
    "new, torch file": layout(random_heads(2, seed=15), new_tensors, new_config(num_heads=2), "pytorch_model.bin"),
}
