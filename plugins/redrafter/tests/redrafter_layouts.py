"""Every layout that recurrent drafters come in: the weights, and the file that says the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from redrafter_checkpoints import (
    VOCAB,
    WIDTH,
    Drafter,
    config,
    random_drafter,
    tensorrt_config,
    tensorrt_tensors_of,
    tensors_of,
)

from specdec_testing.layouts import Layout as Stored

Layout = Stored[Drafter]


def layout(drafter: Drafter, *names: str, file: str = "model.safetensors", **keys: Any) -> Layout:
    return Layout(drafter, tensors_of(drafter, *names), config(drafter, **keys), file)


def tensorrt(drafter: Drafter) -> Layout:
    return Layout(drafter, tensorrt_tensors_of(drafter), tensorrt_config(drafter))


def without_config(drafter: Drafter, *names: str) -> Layout:
    return Layout(drafter, tensors_of(drafter, *names), None, "pytorch_model.bin")


def with_norm(drafter: Drafter) -> Layout:
    """The variant for MLX stores a norm that it never applies."""
    made = layout(drafter, emb_norm=True, rms_norm_eps=1e-5)
    return Layout(drafter, {**made.tensors, "emb_norm.weight": torch.full((WIDTH,), 7.0)}, made.settings)


def flat(drafter: Drafter) -> Drafter:
    """Return a drafter that is less sure of its ids."""
    return replace(drafter, output=drafter.output / 6)


def padded(drafter: Drafter) -> Layout:
    """Return a drafter whose rows of padding are far larger than all others."""
    made = layout(drafter)
    name = f"lm_head.{len(drafter.layers)}.weight"
    return Layout(drafter, {**made.tensors, name: torch.cat([drafter.output, 50 * drafter.output[:8]])}, made.settings)


LAYOUTS: dict[str, Layout] = {
    "recurrent": layout(random_drafter(seed=1)),
    "sums": layout(random_drafter(seed=2, rnn=False)),
    "projected": layout(random_drafter(seed=3, inner=24), file="pytorch_model.bin"),
    "one list of older names": layout(random_drafter(seed=4, inner=24), "lm_heads", "input_projs"),
    "names of a list": layout(random_drafter(1, seed=5, rnn=False), "0"),
    "names of a list, without a config": without_config(random_drafter(seed=6), "0"),
    "without a config": without_config(random_drafter(seed=7, rnn=False)),
    "tensorrt": tensorrt(random_drafter(seed=8, inner=40)),
    "a norm that nothing applies": with_norm(random_drafter(seed=9)),
    "unsure": layout(flat(random_drafter(seed=13))),
    "no layers": layout(random_drafter(0, seed=10)),
    "padded": padded(random_drafter(seed=11)),
    "fewer ids": layout(random_drafter(seed=12, rows=VOCAB - 8)),
}
