"""Every variant that MLP speculators come in: the weights, and the file that says the same."""

from __future__ import annotations

import re

import torch
from mlp_speculator_checkpoints import VOCAB, WIDTH, Weights, config, random_weights, tensors_of
from torch import Tensor

from specdec_testing.layouts import Layout as Stored

Layout = Stored[Weights]


def padded(weights: Weights) -> dict[str, Tensor]:
    """Return a speculator whose rows of padding have far larger logits than all others."""
    more = {
        name: torch.cat([tensor, 50 * tensor[:8]])
        for name, tensor in tensors_of(weights).items()
        if ".head." in name or ".emb." in name
    }
    return {**tensors_of(weights), **more}


PLAIN = random_weights(seed=1)
TIED = random_weights(4, tied=True, scale_input=True, seed=2)
TIED_CONFIG = config(n_predict=4, tie_weights=True, scale_input=True, top_k_tokens_per_head=[3, 2, 2, 1])
WIDE = random_weights(inner=WIDTH, seed=3)
FEWER = random_weights(seed=9, rows=VOCAB - 8)
TRAINER = {
    **config(top_k_tokens_per_head=None, n_candidates=3),
    "architectures": "MLPSpeculatorPreTrainedModel",
    "top_k_tokesns_per_head": [1, 1, 1],
    "torch_dtype": "bfloat16",
}

ARCTIC = {
    "architectures": ["ArcticMLPSpeculatorPreTrainedModel"],
    "base_model_archs": ["LlamaForCausalLM"],
    "num_lookahead_tokens": 4,
}
# Of the class for both recurrences: widths as text, each part a sequence of one layer.
VARIANT = {
    **ARCTIC,
    "architectures": ["MLPVariantSpeculatorPreTrainedModel"],
    "method": "sum_rnn",
    "input_hidden_dim": WIDTH,
    **dict.fromkeys(("inner_dim", "emb_dim", "proj_dim"), "24"),
}


def in_sequences(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names that they have where each part but the head is a sequence of one layer."""
    return {re.sub(r"^(emb|proj|ln)\.(\d)\.", r"\1.\2.0.", name): tensor for name, tensor in tensors.items()}


LAYOUTS: dict[str, Layout] = {
    "plain": Layout(PLAIN, tensors_of(PLAIN), config()),
    "torch file": Layout(PLAIN, tensors_of(PLAIN), config(), "pytorch_model.bin"),
    "no prefix": Layout(PLAIN, tensors_of(PLAIN, ""), config()),
    "no config": Layout(PLAIN, tensors_of(PLAIN), None),
    "inner_dim 0": Layout(WIDE, tensors_of(WIDE), config(inner_dim=0)),
    "other names of keys": Layout(
        PLAIN, tensors_of(PLAIN), config(emb_dim=None, hidden_size=WIDTH, n_predict=None, num_lookahead_tokens=3)
    ),
    "a trainer's spelling": Layout(PLAIN, tensors_of(PLAIN), TRAINER),
    "tied, every copy": Layout(TIED, tensors_of(TIED), TIED_CONFIG),
    "tied, stored once": Layout(TIED, tensors_of(TIED, once=True), TIED_CONFIG, "pytorch_model.bin"),
    "tied, the key's old name": Layout(
        TIED, tensors_of(TIED, once=True), {**TIED_CONFIG, "tie_weights": None, "tie_wts": True}
    ),
    "scaled input": Layout(
        random_weights(seed=5, scale_input=True),
        tensors_of(random_weights(seed=5, scale_input=True)),
        config(scale_input=True),
    ),
    "one head": Layout(
        random_weights(1, seed=6), tensors_of(random_weights(1, seed=6)), config(n_predict=1, top_k_tokens_per_head=[4])
    ),
    "seven heads": Layout(
        random_weights(7, 16, seed=7),
        tensors_of(random_weights(7, 16, seed=7)),
        config(n_predict=7, inner_dim=16, top_k_tokens_per_head=[2, 2, 1, 1, 1, 1, 1]),
    ),
    "padded": Layout(random_weights(seed=8), padded(random_weights(seed=8)), config(vocab_size=VOCAB + 8)),
    "fewer ids": Layout(FEWER, tensors_of(FEWER), config(vocab_size=VOCAB - 8)),
    "Arctic": Layout(TIED, tensors_of(TIED, "", once=True), {**TIED_CONFIG, **ARCTIC}),
    "Arctic, in sequences": Layout(TIED, in_sequences(tensors_of(TIED, "", once=True)), {**TIED_CONFIG, **VARIANT}),
}
