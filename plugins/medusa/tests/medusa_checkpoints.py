"""Random Medusa heads, and the files that each generation of trainers makes of them; reads nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdec_testing import watching
from specdec_testing.fakes import FakeTarget
from specdec_testing.layouts import save as save
from specdec_testing.targets import tiny_target

TARGET = tiny_target("llama")
WIDTH, VOCAB = TARGET.config.hidden_size, TARGET.config.vocab_size
INFO = FakeTarget(TARGET).info
resolve_config, built = watching.over(TARGET, method="medusa")


@dataclass(frozen=True)
class Head:
    """One head: weights and biases of its residual layers, and its output matrix."""

    layers: tuple[tuple[Tensor, Tensor | None], ...]
    output: Tensor


@dataclass(frozen=True)
class Heads:
    """All heads of a checkpoint, what their rows mean, and the factor of their logits.

    ids  [rows] target ids of the rows; None: the rows are the first ids, and those beyond the target's are padding
    """

    heads: tuple[Head, ...]
    ids: Tensor | None = None
    logit_scale: float = 1.0


def random_heads(
    count: int = 4,
    depth: int = 1,
    *,
    seed: int = 0,
    bias: bool = False,
    repeat_layer: bool = False,
    one_output: bool = False,
    rows: int = VOCAB,
    width: int = WIDTH,
) -> Heads:
    """Draw heads; with `repeat_layer` the layers of a head are one, with `one_output` the heads share a matrix."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5

    made = []
    for _ in range(count):
        layers = [(draw(width, width, gain=2.0), draw(width, gain=4.0) if bias else None) for _ in range(depth)]
        layers = [layers[0]] * depth if repeat_layer else layers
        made.append(Head(tuple(layers), draw(rows, width, gain=4.0)))
    if one_output:
        made = [replace(head, output=made[0].output) for head in made]
    return Heads(tuple(made))


def cut(heads: Heads, rows: int, seed: int = 0) -> Heads:
    """Return heads that know only some ids, in no order."""
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:rows]
    return replace(heads, ids=ids, heads=tuple(replace(head, output=head.output[ids]) for head in heads.heads))


def old_tensors(heads: Heads, prefix: str = "", *, once: bool = False) -> dict[str, Tensor]:
    """Return the names of the old generation; with `once` a repeated layer is stored as its first copy alone."""
    tensors = {}
    for k, head in enumerate(heads.heads):
        for i, (weight, bias) in enumerate(head.layers[:1] if once else head.layers):
            tensors[f"{prefix}{k}.{i}.linear.weight"] = weight
            if bias is not None:
                tensors[f"{prefix}{k}.{i}.linear.bias"] = bias
        tensors[f"{prefix}{k}.{len(head.layers)}.weight"] = head.output
    return tensors


def new_tensors(heads: Heads, prefix: str = "", *, outputs: int | None = None) -> dict[str, Tensor]:
    """Return the names of vLLM, with the first `outputs` output matrices."""
    tensors = {}
    for k, head in enumerate(heads.heads):
        for i, (weight, bias) in enumerate(head.layers):
            tensors[f"{prefix}blocks.{k}.layers.{i}.weight"] = weight
            if bias is not None:
                tensors[f"{prefix}blocks.{k}.layers.{i}.bias"] = bias
        if outputs is None or k < outputs:
            tensors[f"{prefix}lm_heads.{k}.weight"] = head.output
    if heads.ids is not None:
        tensors[f"{prefix}token_map"] = heads.ids
    return tensors


OLD_CONFIG: dict[str, Any] = {
    "base_model_name_or_path": "some/target",
    "medusa_num_heads": 4,
    "medusa_num_layers": 1,
    "transformers_version": "4.31.0",
}


def new_config(**keys: Any) -> dict[str, Any]:
    """Return a configuration of vLLM's kind."""
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": WIDTH,
        "vocab_size": VOCAB,
        "num_heads": 4,
        "num_hidden_layers": 1,
        "max_paths": 64,
        "topk": 10,
        **keys,
    }
