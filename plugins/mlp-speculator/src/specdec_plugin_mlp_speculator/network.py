"""The networks of speculators: how state and id become the next state, and that its logits; they read no files.

MLP speculators after arXiv 2404.19124; the LSTM cell is that of Arctic's speculators (docs/mlp_speculator.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6
Linear = Callable[[Tensor], Tensor]


class Network(Protocol):
    """What plans draft with: states are the target's at first, then whatever the network carries from id to id."""

    def begin(self, states: Tensor) -> Tensor:
        """Return what the first step takes, of the target's final states [N, H]."""

    def step(self, head: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states [N, ...] behind a step, from those before it and the ids [N] int64 drafted last."""

    def logits(self, head: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of the states behind a step."""


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
        return scaled(states) if self._scale_input else states

    def step(self, head: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states [N, inner] behind a head, from those before it and the ids [N] int64 drafted last."""
        parts = self._heads[head]
        embedded = parts.embedding[tokens.clamp(max=len(parts.embedding) - 1)]
        mixed = torch.add(parts.projection(states), embedded, alpha=self._factor)
        return F.gelu(normed(mixed, parts.norm))

    def logits(self, head: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of the states behind a head."""
        return self._heads[head].output(states)


@dataclass(slots=True)
class Cell:
    """The parts of an LSTM cell of width D, which serves all steps.

    projections  of the first step and of all others, [N, in] -> [N, 4 D]: forget, input, output, cell
    embedding    [rows, D], added to each of the four; ids beyond its end take its last row
    cell_norm    weight and bias, each [D], of what enters the cell's state
    state_norm   the same of what leaves it
    output       [N, D] -> logits [N, V_d]
    """

    projections: tuple[Linear, ...]
    embedding: Tensor
    cell_norm: tuple[Tensor, Tensor]
    state_norm: tuple[Tensor, Tensor]
    output: Linear


class CellSpeculator:
    """One LSTM cell that goes from id to id, its state s beginning as the target's and its state c as zeros.

    What is carried is [s ; c], [N, H + D] at first and [N, 2 D] behind each step.
    """

    def __init__(self, cell: Cell, factor: float, *, scale_input: bool) -> None:
        """Take the cell, the factor of embeddings, and whether the target's state is normed first."""
        self._cell, self._factor, self._scale_input = cell, factor, scale_input

    def begin(self, states: Tensor) -> Tensor:
        """Return the target's final states [N, H] beside an empty c."""
        first = scaled(states) if self._scale_input else states
        return torch.cat([first, first.new_zeros(len(first), self._cell.embedding.shape[1])], dim=-1)

    def step(self, head: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Return [s ; c] behind a step, from that before it and the ids [N] int64 drafted last."""
        parts, width = self._cell, self._cell.embedding.shape[1]
        last, memory = states[:, :-width], states[:, -width:]
        embedded = parts.embedding[tokens.clamp(max=len(parts.embedding) - 1)]
        rows = parts.projections[min(head, 1)](last).view(len(states), 4, width)
        mixed = torch.add(rows, embedded[:, None], alpha=self._factor)
        forget, enter, leave = torch.sigmoid(mixed[:, :3]).unbind(dim=1)
        memory = memory * forget + F.gelu(normed(mixed[:, 3], parts.cell_norm)) * enter
        return torch.cat([F.gelu(normed(memory, parts.state_norm)) * leave, memory], dim=-1)

    def logits(self, head: int, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of what is carried behind a step."""
        return self._cell.output(states[:, : self._cell.embedding.shape[1]])


def scaled(states: Tensor) -> Tensor:
    """Return states [N, H] normed without a weight, divided by sqrt(2)."""
    return F.rms_norm(states, states.shape[-1:], None, EPS) / math.sqrt(2)


def normed(x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) times a weight plus a bias."""
    weight, bias = norm
    return F.rms_norm(x, weight.shape, weight, EPS) + bias
