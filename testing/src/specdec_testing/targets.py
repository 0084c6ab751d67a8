"""Tiny random targets of many families: real transformers models, the same weights on every call, no shared RNG used.

A freshly initialised tiny model has nearly flat logits and repeats itself. Here every matrix is drawn with unit gain,
the head with a gain of several, and head and embedding are untied, so that greedy text is varied, depends on the whole
context, and has top-2 margins far above float32 noise.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn

from specdec_nn.hf.loading import auto_class_of
from specdec_testing.families import FAMILIES

HEAD_GAIN: Final = 4.0
EMBEDDING_STD: Final = 0.5
POSITION_STD: Final = 0.5
MATRIX_GAIN: Final = 2.0
VECTOR_STD: Final = 0.1


def tiny_config(family: str, **overrides: Any) -> transformers.PreTrainedConfig:
    """Return the tiny configuration of a family; overrides are the config class's own argument names."""
    if family not in FAMILIES:
        message = f"no tiny target of family {family!r}; known are {', '.join(sorted(FAMILIES))}"
        raise ValueError(message)
    class_name, arguments = FAMILIES[family]
    return getattr(transformers, class_name)(**{**arguments, **overrides})


def tiny_target(
    family: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **config_overrides: Any
) -> transformers.PreTrainedModel:
    """Return a tiny random causal language model of a family, in eval mode on the CPU.

    Weights depend on family, seed and parameter name alone. They are drawn in float32 and rounded to `dtype`; tables
    that transformers keeps in float32 stay so. `config_overrides` go to the config class, for instance
    `eos_token_id=None` or `num_hidden_layers=4`.
    """
    config = tiny_config(family, **config_overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class_of(config).from_config(config, dtype=dtype)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    lookup = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = _generator(family, seed, name)
            if parameter is head.weight:
                parameter.copy_(_normal(parameter, generator, HEAD_GAIN / math.sqrt(parameter.shape[1])))
            elif parameter is embedding.weight:
                parameter.copy_(_normal(parameter, generator, EMBEDDING_STD))
            elif id(parameter) in lookup:
                parameter.copy_(_normal(parameter, generator, POSITION_STD))
            elif parameter.ndim == 1:
                parameter.add_(_normal(parameter, generator, VECTOR_STD).to(parameter.dtype))
            elif not name.endswith("A_log"):
                parameter.copy_(_normal(parameter, generator, MATRIX_GAIN / math.sqrt(parameter.shape[-1])))
    return model.eval()


def shared_target(family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Return the tiny target of a family that all who ask in this process get.

    A method leaves its target as it is. What one has changed is put back, so that only its own checks fail.
    """
    model, weights = _shared(family, dtype)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not torch.equal(tensor, weights[name]):
                tensor.copy_(weights[name])
    return model


@functools.lru_cache(maxsize=8)
def _shared(family: str, dtype: torch.dtype) -> tuple[transformers.PreTrainedModel, dict[str, Tensor]]:
    """Return a target and copies of its weights."""
    model = tiny_target(family, dtype=dtype)
    return model, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _normal(like: Tensor, generator: torch.Generator, std: float) -> Tensor:
    """Draw float32 normals in the shape of a parameter."""
    return std * torch.randn(like.shape, generator=generator, dtype=torch.float32)


def _generator(family: str, seed: int, name: str) -> torch.Generator:
    """Return a generator that belongs to one parameter."""
    digest = hashlib.blake2b(f"{family}/{seed}/{name}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
