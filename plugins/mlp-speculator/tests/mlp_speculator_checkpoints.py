"""Random MLP and LSTM speculators, and the files that trainers make of them; reads nothing."""

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
resolve_config, built = watching.over(TARGET, method="mlp_speculator")


GATES = ("forget", "input", "output", "cell")
INNER = 24  # of LSTM speculators


@dataclass(frozen=True)
class Head:
    """One head: projection [inner, in], embedding [rows, inner], norm's weight and bias, output [rows, inner]."""

    projection: Tensor
    embedding: Tensor
    weight: Tensor
    bias: Tensor
    output: Tensor


@dataclass(frozen=True)
class Weights:
    """A speculator: its heads, and whether the target's state is normed first."""

    heads: tuple[Head, ...]
    scale_input: bool = False


def random_weights(
    n_predict: int = 3,
    inner: int = 24,
    *,
    seed: int = 0,
    tied: bool = False,
    scale_input: bool = False,
    rows: int = VOCAB,
    width: int = WIDTH,
) -> Weights:
    """Draw a speculator; `tied` ones share all but the first projection."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5

    def head(first: bool) -> Head:
        return Head(
            projection=draw(inner, width if first else inner, gain=2.0),
            embedding=draw(rows, inner, gain=1.5),
            weight=1 + draw(inner, gain=1.0),
            bias=draw(inner, gain=1.0),
            output=draw(rows, inner, gain=5.0),
        )

    made = [head(first=i == 0) for i in range(n_predict)]
    if tied and n_predict > 1:
        others = replace(made[0], projection=made[1].projection)
        made = [made[0], *[others] * (n_predict - 1)]
    return Weights(tuple(made), scale_input)


def tensors_of(weights: Weights, prefix: str = "speculator.", *, once: bool = False) -> dict[str, Tensor]:
    """Return the tensors by name; with `once` what tied heads share is stored in its first copy alone."""
    found: dict[str, Tensor] = {}
    for i, head in enumerate(weights.heads):
        if i < 2 or not once:
            found[f"{prefix}proj.{i}.weight"] = head.projection
        if i == 0 or not once:
            found[f"{prefix}emb.{i}.weight"] = head.embedding
            found[f"{prefix}ln.{i}.weight"] = head.weight
            found[f"{prefix}ln.{i}.bias"] = head.bias
            found[f"{prefix}head.{i}.weight"] = head.output
    return found


def config(**keys: Any) -> dict[str, Any]:
    """Return a configuration as fms-extras writes it; a key of None is left out."""
    settings = {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "vocab_size": VOCAB,
        "emb_dim": WIDTH,
        "inner_dim": 24,
        "n_predict": 3,
        "top_k_tokens_per_head": [3, 2, 2],
        "n_candidates": 4,
        "tie_weights": False,
        "scale_input": False,
        **keys,
    }
    return {key: value for key, value in settings.items() if value is not None}


def lstm_tensors(
    *, seed: int = 0, inner: int = INNER, rows: int = VOCAB, width: int = WIDTH, copies: int = 1
) -> dict[str, Tensor]:
    """Return the tensors of a speculator; with more `copies`, those of tied tables and heads that files may hold."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * gain / shape[-1] ** 0.5

    tensors = {"forget_emb.0.weight": draw(rows, inner, gain=1.5)}
    for gate in GATES:
        tensors[f"{gate}_proj.0.weight"] = draw(inner, width, gain=2.0)
        tensors[f"{gate}_proj.1.weight"] = draw(inner, inner, gain=3.0)
    for name in ("cell_ln", "state_ln"):
        tensors[f"{name}.0.weight"] = 1 + draw(inner)
        tensors[f"{name}.0.bias"] = draw(inner)
    tensors["head.0.weight"] = draw(rows, inner, gain=9.0)
    if copies > 1:
        tensors |= {f"{gate}_emb.0.weight": tensors["forget_emb.0.weight"] for gate in GATES}
        tensors |= {f"head.{i}.weight": tensors["head.0.weight"] for i in range(copies)}
    return tensors


def lstm_config(**keys: Any) -> dict[str, Any]:
    """Return a configuration as Arctic's trainer writes it; a key of None is left out."""
    settings = {
        "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"],
        "base_model_archs": ["LlamaForCausalLM"],
        "model_type": "mlp_speculator",
        "input_hidden_dim": WIDTH,
        "inner_dim": str(INNER),
        "emb_dim": str(INNER),
        "proj_dim": str(INNER),
        "vocab_size": VOCAB,
        "n_predict": 3,
        "num_lookahead_tokens": 3,
        "tie_weights": True,
        "tie_lstm_embs": True,
        "scale_input": False,
        "method": "sum_lstm",
        **keys,
    }
    return {key: value for key, value in settings.items() if value is not None}
