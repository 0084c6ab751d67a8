"""What goes through the places of a block from left to right, each choice by those before it; it reads no files.

A chooser begins a walk over one block a request; the walk gives the logits of each place in turn, and is told what was
drafted there. DFlash2 scores pairs of candidates, Domino corrects logits by a recurrence (docs/dflash.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdec_nn.drafters.draft_sampler import largest


@dataclass(slots=True)
class Places:
    """The places of the blocks of a round, all of a request in order, request after request.

    states  [m, H_d] normed output states
    base    [m, V] logits of these alone
    newest  [A] ids that the blocks begin with
    last    [A, H_d] what the head makes keys and values of at the last committed row of each request
    """

    states: Tensor
    base: Tensor
    newest: Tensor
    last: Tensor


class Walk(Protocol):
    """One pass over the places. Rows are indices into them, chains those of requests; both [a], in the same order."""

    def logits(self, rows: Tensor, chains: Tensor, depth: int) -> Tensor:
        """Return logits [a, V] of places at a depth, -inf for ids that cannot be drafted there."""

    def take(self, chains: Tensor, tokens: Tensor) -> None:
        """Hear of the ids [a] that were drafted."""


class Chooser(Protocol):
    """The weights of a walk."""

    whole: bool  # a walk needs all places of each block, those past a request's limit included

    def begin(self, places: Places) -> Walk:
        """Begin a walk."""


def scattered(like: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
    """Return logits [a, V] that are scores [a, k] at ids [a, k], and -inf elsewhere; `like` [m, V] has their width."""
    wide = scores.new_full((len(ids), like.shape[1]), float("-inf"))
    return wide.scatter_(1, ids, scores)


class PairSelector:
    """DFlash2's selector: a candidate's logit plus its product with the id before, weighed by the place's state."""

    whole = False

    def __init__(
        self, predecessors: Tensor, successors: Tensor, project: Callable[[Tensor], Tensor], top_k: int
    ) -> None:
        """Take the tables [V, r] of ids before and after, the projection of states to [m, r], and the candidates."""
        self.predecessors, self.successors, self.project, self.top_k = predecessors, successors, project, top_k

    def begin(self, places: Places) -> Walk:
        """Choose the candidates of all places."""
        return _PairWalk(self, places)


class _PairWalk:
    def __init__(self, selector: PairSelector, places: Places) -> None:
        self._selector, self._base, self._before = selector, places.base, places.newest.clone()
        self._scores, self._candidates = largest(places.base.float(), selector.top_k)
        self._weights = selector.project(places.states).float()

    def logits(self, rows: Tensor, chains: Tensor, depth: int) -> Tensor:
        before = self._before[chains].clamp(max=len(self._selector.predecessors) - 1)
        left = self._selector.predecessors[before].float() * self._weights[rows]
        candidates = self._candidates[rows]
        pairs = torch.einsum("akr,ar->ak", self._selector.successors[candidates].float(), left)
        return scattered(self._base, candidates, self._scores[rows] + pairs)

    def take(self, chains: Tensor, tokens: Tensor) -> None:
        self._before.index_copy_(0, chains, tokens)


@dataclass(slots=True)
class PrefixCorrection:
    """Domino: a recurrence over the newest id and the drafts so far corrects the logits of every place but the first.

    embed       vectors [a, H_d] of ids [a]
    by_id       [a, 3 G] of vectors, by_prefix [a, 3 G] of the recurrence's states: reset, update, new
    inner       [a, E] of states and the recurrence's states side by side
    correct     [a, V] of SiLU of these
    """

    embed: Callable[[Tensor], Tensor]
    by_id: Callable[[Tensor], Tensor]
    by_prefix: Callable[[Tensor], Tensor]
    inner: Callable[[Tensor], Tensor]
    correct: Callable[[Tensor], Tensor]
    size: int
    whole: bool = False

    def begin(self, places: Places) -> Walk:
        """Take in the newest ids."""
        return _PrefixWalk(self, places)

    def after(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Return the recurrence's states [a, G] behind ids [a] (a gated recurrent unit, arXiv 1406.1078)."""
        enter = self.by_id(self.embed(tokens)).chunk(3, dim=-1)
        held = self.by_prefix(prefix).chunk(3, dim=-1)
        reset, update = (torch.sigmoid(a + b) for a, b in zip(enter[:2], held[:2], strict=True))
        new = torch.tanh(enter[2] + reset * held[2])
        return (1 - update) * new + update * prefix


class _PrefixWalk:
    def __init__(self, correction: PrefixCorrection, places: Places) -> None:
        self._correction, self._places = correction, places
        empty = places.states.new_zeros(len(places.newest), correction.size)
        self._prefix = correction.after(empty, places.newest)

    def logits(self, rows: Tensor, chains: Tensor, depth: int) -> Tensor:
        base = self._places.base[rows]
        if depth == 0:
            return base
        seen = torch.cat([self._places.states[rows], self._prefix[chains]], dim=-1)
        return base + self._correction.correct(torch.nn.functional.silu(self._correction.inner(seen)))

    def take(self, chains: Tensor, tokens: Tensor) -> None:
        self._prefix.index_copy_(0, chains, self._correction.after(self._prefix[chains], tokens))
