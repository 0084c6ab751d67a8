"""Random Hydra heads, and the files that the method's trainer makes of them; reads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specdec_testing import layouts, watching
from specdec_testing.fakes import FakeTarget
from specdec_testing.targets import tiny_target

TARGET = tiny_target("llama")
WIDTH, VOCAB = TARGET.config.hidden_size, TARGET.config.vocab_size
INFO = FakeTarget(TARGET).info
resolve_config, built = watching.over(TARGET, method="hydra")
save = partial(layouts.save, file="hydra_lm_head.pt")
TABLE = TARGET.get_input_embeddings().weight.detach()
Linear = tuple[Tensor, Tensor]  # weight and bias


@dataclass(frozen=True)
class Head:
    """One head.

    blocks    weights of its blocks, the first [H, in]
    residual  what takes the input to the width of states, None where the input has it
    output    [rows, H]
    """

    blocks: tuple[Linear, ...]
    residual: Linear | None
    output: Linear


@dataclass(frozen=True)
class Heads:
    """All heads of a checkpoint, and its prefix layer by the names of transformers' Llama, None without one."""

    heads: tuple[Head, ...]
    prefix: Mapping[str, Tensor] | None = None


def random_heads(
    count: int = 4,
    layers: int = 1,
    *,
    seed: int = 0,
    grounded: bool = True,
    prefix: Mapping[str, Any] | None = None,
    rows: int = VOCAB,
    width: int = WIDTH,
) -> Heads:
    """Draw heads whose later blocks are one module, with a prefix layer for a target of that config."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5

    def linear(out: int, into: int, gain: float = 1.0) -> Linear:
        return draw(out, into, gain=gain), draw(out)

    heads, gain = [], 4.0 if layers == 1 else 4.0 / 2**layers  # each block makes states about twice as large
    for number in range(count):
        first = linear(width, width * (number + 2), 2.0) if grounded else linear(width, width, 2.0)
        shared = linear(width, width, 2.0) if grounded else first
        residual = linear(width, width * (number + 2), 2.0) if grounded else None
        heads.append(Head((first, *[shared] * (layers - 1)), residual, linear(rows, width, gain)))
    return Heads(tuple(heads), None if prefix is None else _prefix(prefix, draw))


def _prefix(config: Mapping[str, Any], draw: Any) -> dict[str, Tensor]:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    d = config.get("head_dim") or width // heads
    sizes = {"q": heads * d, "k": config["num_key_value_heads"] * d, "v": config["num_key_value_heads"] * d}
    tensors = {f"layers.0.self_attn.{name}_proj.weight": draw(size, width, gain=2.0) for name, size in sizes.items()}
    tensors["layers.0.self_attn.o_proj.weight"] = draw(width, heads * d, gain=2.0)
    tensors |= {f"layers.0.mlp.{name}_proj.weight": draw(48, width, gain=2.0) for name in ("gate", "up")}
    tensors["layers.0.mlp.down_proj.weight"] = draw(width, 48, gain=2.0)
    norms = ("layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight", "norm.weight")
    return tensors | {name: 1.0 + 0.3 * draw(width) * width**0.5 for name in norms}


def tensors_of(heads: Heads, *, dropout: bool = False, once: bool = False) -> dict[str, Tensor]:
    """Return the names of files: with `dropout` those of prefix-mlp; with `once` equal blocks are stored once."""
    tensors: dict[str, Tensor] = {}
    for number, head in enumerate(heads.heads):
        known: list[Linear] = []
        for i, block in enumerate(head.blocks):
            if once and any(block is other for other in known):
                continue
            known.append(block)
            name = f"hydra_mlp.{number}.{2 * i + 1 if dropout else i}"
            tensors |= {f"{name}.linear.weight": block[0], f"{name}.linear.bias": block[1]}
            if i == 0 and head.residual is not None:
                weight, bias = head.residual
                tensors |= {f"{name}.res_connection.weight": weight, f"{name}.res_connection.bias": bias}
        name = f"hydra_lm_head.{number}.1" if dropout else f"hydra_lm_head.{number}"
        tensors |= {f"{name}.weight": head.output[0], f"{name}.bias": head.output[1]}
    return tensors | {f"prefix_embeding_layer.{name}": tensor for name, tensor in (heads.prefix or {}).items()}


def config(heads: Heads, **keys: Any) -> dict[str, Any]:
    """Return the configuration that a trainer writes beside the heads."""
    return {
        "base_model_name_or_path": "some/target",
        "grounded_heads": heads.heads[0].residual is not None,
        "hydra_head_arch": "mlp" if heads.prefix is None else "prefix-mlp",
        "hydra_num_heads": len(heads.heads),
        "hydra_num_layers": len(heads.heads[0].blocks),
        "transformers_version": "4.36.2",
        **keys,
    }
