"""Random recurrent drafters, and the files that each code base makes of them; reads nothing."""

from __future__ import annotations

from dataclasses import dataclass
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
resolve_config, built = watching.over(TARGET, method="redrafter")
TABLE = TARGET.get_input_embeddings().weight.detach()
Linear = tuple[Tensor, Tensor]  # weight and bias


@dataclass(frozen=True)
class Drafter:
    """A drafter's weights.

    rnn         W, U and b of s' = SiLU(W E + U s + b); None: s' = s + E
    projection  of the head's input, None where it has the right width
    layers      residual layers of the head
    output      [rows, X]
    """

    rnn: tuple[Tensor, Tensor, Tensor] | None
    projection: Linear | None
    layers: tuple[Linear, ...]
    output: Tensor


def random_drafter(
    layers: int = 2,
    *,
    seed: int = 0,
    inner: int | None = None,
    rnn: bool = True,
    rows: int = VOCAB,
    width: int = WIDTH,
) -> Drafter:
    """Draw a drafter whose head has the width `inner`, 2 H if it is left out."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5

    x = inner or 2 * width
    recurrent = (draw(width, width, gain=4.0), draw(width, width, gain=2.0), draw(width))
    projection = None if x == 2 * width else (draw(x, 2 * width, gain=2.0), draw(x))
    blocks = tuple((draw(x, x, gain=2.0), draw(x)) for _ in range(layers))
    return Drafter(recurrent if rnn else None, projection, blocks, draw(rows, x, gain=4.0))


def tensors_of(drafter: Drafter, part: str = "lm_head", projection: str = "input_proj") -> dict[str, Tensor]:
    """Return the names of the authors' code, with the list of the head's modules called `part`."""
    tensors: dict[str, Tensor] = {}
    for i, (weight, bias) in enumerate(drafter.layers):
        tensors |= {f"{part}.{i}.linear.weight": weight, f"{part}.{i}.linear.bias": bias}
    tensors[f"{part}.{len(drafter.layers)}.weight"] = drafter.output
    if drafter.projection is not None:
        tensors |= {f"{projection}.weight": drafter.projection[0], f"{projection}.bias": drafter.projection[1]}
    if drafter.rnn is not None:
        w, u, b = drafter.rnn
        tensors |= {"rnn_w.weight": w, "rnn_u.weight": u, "rnn_u.bias": b}
    return tensors


def tensorrt_tensors_of(drafter: Drafter) -> dict[str, Tensor]:
    """Return the names of TensorRT-LLM, beside some of the target's."""
    output = f"lm_head.{len(drafter.layers)}.weight"
    names = {output: "lm_head.weight"}
    ours = {
        f"drafter.{names.get(name, name.replace('lm_head.', 'layers.'))}": tensor
        for name, tensor in tensors_of(drafter).items()
    }
    return {**ours, "lm_head.weight": torch.zeros(2, 2), "transformer.layers.0.mlp.fc.weight": torch.zeros(2, 2)}


def config(drafter: Drafter, **keys: Any) -> dict[str, Any]:
    """Return the configuration that the authors' code writes."""
    return {
        "model_type": "recurrent_drafting_drafter",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "exit_dim": drafter.output.shape[1],
        "num_draft_layers": len(drafter.layers),
        "num_lookback_tokens": 1,
        "rnn": drafter.rnn is not None,
        **keys,
    }


def tensorrt_config(drafter: Drafter) -> dict[str, Any]:
    """Return keys of TensorRT-LLM."""
    return {
        "architecture": "ReDrafterForCausalLM",
        "redrafter_num_beams": 5,
        "redrafter_draft_len_per_beam": 5,
        "redrafter_greedy_search": True,
        "redrafter_num_layers": len(drafter.layers),
        "redrafter_hidden_size": WIDTH,
        "redrafter_exit_dim": drafter.output.shape[1],
        "redrafter_is_rnn": drafter.rnn is not None,
    }
