"""Every layout that Hydra heads come in: the heads, and the file that says the same."""

from __future__ import annotations

from typing import Any

import torch
from hydra_checkpoints import TABLE, TARGET, VOCAB, WIDTH, Heads, config, random_heads, tensors_of

from specdec_testing.layouts import Layout as Stored

Layout = Stored[Heads]

TARGET_CONFIG = TARGET.config.to_dict()


def layout(heads: Heads, file: str = "hydra_lm_head.pt", *, once: bool = False, **keys: Any) -> Layout:
    return Layout(heads, tensors_of(heads, dropout=heads.prefix is not None, once=once), config(heads, **keys), file)


def with_copies(made: Layout) -> Layout:
    """Add what the method's trainer stores besides: the target's table, twice, and frequencies of positions."""
    more = {
        "input_embed_fn.weight": TABLE,
        "prefix_embeding_layer.embed_tokens.weight": torch.zeros(VOCAB, WIDTH),
        "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    return Layout(made.parts, {**made.tensors, **more}, made.settings, made.file)


def padded(heads: Heads) -> Layout:
    """Return heads whose rows of padding have far larger logits than all others."""
    made = layout(heads, "model.safetensors")
    tensors = {n: torch.cat([t, t[:8] + 500]) if n.startswith("hydra_lm_head.") else t for n, t in made.tensors.items()}
    return Layout(heads, tensors, made.settings, made.file)


def without_config(heads: Heads) -> Layout:
    made = layout(heads)
    return Layout(heads, made.tensors, None, made.file)


LAYOUTS: dict[str, Layout] = {
    "mlp": layout(random_heads(seed=1)),
    "prefix-mlp": with_copies(layout(random_heads(4, 4, seed=2, prefix=TARGET_CONFIG))),
    "mlp, three blocks": layout(random_heads(3, 3, seed=3), "model.safetensors"),
    "mlp, three blocks, equal ones stored once": layout(random_heads(3, 3, seed=4), once=True),
    "mlp, without a config": without_config(random_heads(5, seed=5)),
    "mlp, not grounded": layout(random_heads(3, 2, seed=6, grounded=False)),
    "mlp, an earlier state": layout(random_heads(3, seed=7), hidden_state_offset=1),
    "prefix-mlp, one block, safetensors": layout(random_heads(2, seed=8, prefix=TARGET_CONFIG), "model.safetensors"),
    "prefix-mlp, the first state": layout(
        random_heads(3, 2, seed=9, prefix=TARGET_CONFIG), hidden_state_offset=TARGET.config.num_hidden_layers
    ),
    "mlp, padded": padded(random_heads(seed=10)),
    "mlp, fewer ids": layout(random_heads(seed=11, rows=VOCAB - 8)),
}
