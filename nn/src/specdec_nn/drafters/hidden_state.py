"""Drafting from the target's hidden states: the part that all heads with a cache of their own share (EAGLE, MTP).

A head turns rows (a known token, the target's state before it) into states of its own, and those into draft logits. The
drafter here keeps its cache, feeds it committed rows only, and hands the last state of each request to a *plan*, which
makes the drafts. The layout is that of docs/engine.md, "Rows for proposers": tokens are
one to the left, positions do not move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray, RequestView, Rows
from specdec_core.errors import ContractError
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import all_to_device, to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.replayed_head import replayed
from specdec_nn.ops.attention.reference import AttentionStep

Indices = npt.NDArray[np.int64]


class RowHead(Protocol):
    """What turns committed rows into states, by the weights and the wiring of one method. N rows, H its width."""

    def features(self, rows: Rows) -> Tensor:
        """Return the head's input states [N, H] made of the target's states of committed rows."""

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, arena: KVArena, step: AttentionStep, depth: int
    ) -> Tensor:
        """Return output states [N, H] of rows (tokens [N] target ids, features [N, H], positions [N]).

        `depth` is 0 for committed rows and the first rows of drafts, then counts up: which module of several runs.
        """


class FeatureHead(RowHead, Protocol):
    """A head whose drafts are rows of its own, too. V_d is its vocabulary."""

    d2t: Tensor | None  # [V_d] int64 offsets: draft id i is target id i + d2t[i]; None = target ids

    def logits(self, states: Tensor) -> Tensor:
        """Return draft logits [N, V_d] of output states."""

    def feedback(self, states: Tensor) -> Tensor:
        """Return what output states become as features of the rows after them, [N, H]."""


@dataclass(slots=True)
class Round:
    """What a plan drafts from: the requests that want drafts in this step, in the order of the batch.

    index      [A] their batch rows
    names      A request names, for the cache
    limits     [A] the most drafts of each, at least 1
    positions  [A] position of the first row of drafts: that of the newest id
    states     [A, H] what the first draft is made of: the output at the last committed row, the head's or the target's
    batch      the whole batch
    """

    index: Indices
    names: list[str]
    limits: IntArray
    positions: IntArray
    states: Tensor
    batch: BatchView


Head = TypeVar("Head", bound=RowHead)
# Returns a draft with one row for each request of the round.
Plan = Callable[[Round, FeatureHead, DraftCache], Draft]


class HiddenStateDrafter(Generic[Head]):
    """A proposer for heads over hidden states; requires `traits.rows == "all"`."""

    def __init__(self, head: Head, cache: DraftCache, plan: Callable[[Round, Head, DraftCache], Draft]) -> None:
        """Take the head, the cache that its layers write to, and what makes drafts."""
        self._head = replayed(head, cache.arena)
        self._cache = cache
        self._plan = plan

    def start(self, request: RequestView) -> None:
        """Begin with an empty cache."""
        self._cache.open(request.id)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Give the request's rows back."""
        self._cache.close(request.id)

    def close(self) -> None:
        """Give everything back."""
        self._cache.clear()

    def memory_bytes(self) -> int:
        """Return the size of the cache."""
        return self._cache.memory_bytes()

    def propose(self, batch: BatchView) -> Draft:
        """Take in the committed rows, then draft for the requests that may have drafts."""
        rows = batch.rows
        if rows is None:
            message = "this method needs the target's rows, and the host gave none"
            raise ContractError(message)
        with torch.inference_mode():
            counts = np.bincount(rows.request, minlength=len(batch))
            if not counts.any():
                return Draft.empty(len(batch))
            states = self._absorb(batch, rows, counts)
            wanting = np.flatnonzero((counts > 0) & (batch.max_draft > 0))
            if not len(wanting):
                return Draft.empty(len(batch))
            last = np.cumsum(counts)[wanting] - 1
            drafts = Round(
                index=wanting,
                names=[batch.request(i).id for i in wanting.tolist()],
                limits=batch.max_draft[wanting],
                positions=batch.run_len[wanting],
                states=states[to_device(last, states.device)],
                batch=batch,
            )
            draft = self._plan(drafts, self._head, self._cache)
        return spread(draft, wanting, len(batch))

    def _absorb(self, batch: BatchView, rows: Rows, counts: Indices) -> Tensor:
        """Run committed rows through the head; what drafts left in the cache is overwritten."""
        here = np.flatnonzero(counts)
        names = [batch.request(i).id for i in here.tolist()]
        self._cache.rewind(names)
        features = self._head.features(rows)
        step = self._cache.append(names, counts[here].tolist(), counts[here].tolist())
        ids = (rows.tokens.astype(np.int64), rows.positions.astype(np.int64))
        tokens, positions = all_to_device(ids, features.device)
        return self._head.forward(tokens, features, positions, self._cache.arena, step, 0)


def spread(draft: Draft, index: Indices, n: int) -> Draft:
    """Return the draft of a whole batch from that of some of its rows, in order; the others are empty."""
    lengths = np.zeros(n, np.int64)
    lengths[index] = draft.lengths or ()
    draft.lengths = lengths.tolist()
    return draft


class ChainPlan:
    """Drafts one token after the other, each from the head's own state of the one before."""

    def __init__(self, sampler: DraftSampler) -> None:
        """Take what picks a token from logits."""
        self._sampler = sampler

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens."""
        states, active = drafts.states, np.arange(len(drafts.names))
        picks = self._sampler.begin(drafts, head.d2t)
        for depth in range(int(drafts.limits.max())):
            tokens = picks.pick(head.logits(states), active, depth)
            going = np.flatnonzero(drafts.limits[active] > depth + 1)
            if not len(going):
                break
            active = active[going]
            names = [drafts.names[i] for i in active.tolist()]
            places = (drafts.positions[active] + depth).astype(np.int64)
            chosen, positions = all_to_device((going, places), states.device)
            step = cache.append(names, [1] * len(active))
            features = head.feedback(states[chosen])
            states = head.forward(tokens[chosen], features, positions, cache.arena, step, depth)
        return picks.draft()
