"""The network of an MLP speculator: how state and id become the next state, and that its logits (arXiv 2404.19124)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6
Linear = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class SpeculatorHead:
    """The parts of one head.

    projection  [N, in] -> [N, inner]
    embedding   [rows, inner]; ids beyond its end (rows of padding in the target) take its last row
    norm        weight and bias, each [inner]: x / sqrt(mean(x^2) + eps) times the one plus the other
    output      [N, inner] -> logits [N, V_d]
    """

    projection: Linear
    embedding: Tensor
    norm: tuple[Tensor, Tensor]
    output: Linear


class Speculator:
    """Heads in order; head i makes the state after the i-th drafted id. Heads that are tied are one object's tensors.

    The first id is the newest one, which the target drew from the state that the speculator begins with.
    """

    def __init__(self, heads: list[SpeculatorHead], factor: float, *, scale_input: bool) -> None:
        """Take the heads, the factor of embeddings, and whether the target's state is normed first."""
        self._heads, self._factor, self._scale_input = heads, factor, scale_input

    def begin(self, states: Tensor) -> Tensor:
        """Return what the first head takes, of the target's final states [N, H]."""
        return F.rms_norm(states, states.shape[-1:], None, EPS) / math.sqrt(2) if self._scale_input else states

    def step(self, head: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states [N, inner] behind a head, from those before it and the ids [N] int64 drafted last."""
        parts = self._heads[head]
        embedded = parts.embedding[tokens.clamp(max=len(parts.embedding) - 1)]
        mixed = torch.add(parts.projection(states), embedded, alpha=self._factor)
        weight, bias = parts.norm
        return F.gelu(F.rms_norm(mixed, weight.shape, weight, EPS) + bias)

    def logits(self, head: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of the states behind a head."""
        return self._heads[head].output(states)
