"""Drafting by several modules in sequence, each with keys and values of its own; it knows no network.

Module s reads at row i the token of position i + 1 + s, and what module s - 1 made of row i, for the first the target's
state; its output predicts the token of position i + 2 + s (arXiv 2412.19437, section 2.2). A row is final once its
token is known. After a round the last s rows of module s are not, as drafts stand for their tokens: those are dropped,
and run anew when the tokens are known. All that is kept for it is, for each module, the one row that is final in the
module before and waits for its own token.

When the modules have had their turn and more drafts are wanted, they begin again, as if the target had run the drafts:
what module j made of the last row stands for the target's state j rows later. With one module this is a plain chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, IntArray, RequestView
from specdec_core.errors import ContractError
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.draft_sampler import DraftSampler, Picks
from specdec_nn.drafters.hidden_state import FeatureHead, Indices, Round, spread


@dataclass(slots=True)
class _Flow:
    """Rows on their way to a module, one request after the other.

    owner      [N] their batch rows, ascending
    positions  [N] ascending within a request
    features   [N, H] what the module reads beside the tokens
    """

    owner: Indices
    positions: Indices
    features: Tensor

    def take(self, rows: Indices) -> _Flow:
        """Return some of the rows."""
        if len(rows) == len(self.owner):
            return self
        return _Flow(self.owner[rows], self.positions[rows], self.features[_on(self.features.device, rows)])


class ModuleDrafter:
    """A proposer for modules over hidden states; requires `traits.rows == "all"`.

    heads   one a module, in order; the first makes features of the target's states
    caches  one for each head, in arenas of their own, with room for `round_rows` rows of a round
    """

    def __init__(self, heads: Sequence[FeatureHead], caches: Sequence[DraftCache], sampler: DraftSampler) -> None:
        """Take the modules, their caches, and what picks a token from logits."""
        self._heads, self._caches, self._sampler = list(heads), list(caches), sampler
        # By request and module: position and features of the row that waits for its token.
        self._waiting: dict[str, dict[int, tuple[int, Tensor]]] = {}

    @staticmethod
    def round_rows(modules: int, k: int) -> int:
        """Return how many rows of a request a module may hold, beyond the final ones, in a round of k drafts."""
        return k + modules

    def start(self, request: RequestView) -> None:
        """Begin with empty caches."""
        self._waiting[request.id] = {}
        for cache in self._caches:
            cache.open(request.id)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Give the request's rows back."""
        self._waiting.pop(request.id, None)
        for cache in self._caches:
            cache.close(request.id)

    def close(self) -> None:
        """Give everything back."""
        self._waiting.clear()
        for cache in self._caches:
            cache.clear()

    def memory_bytes(self) -> int:
        """Return the size of the caches."""
        return sum(cache.memory_bytes() for cache in self._caches)

    def propose(self, batch: BatchView) -> Draft:
        """Take in the committed rows, module after module, and draft for the requests that may have drafts."""
        rows = batch.rows
        if rows is None:
            message = "this method needs the target's rows, and the host gave none"
            raise ContractError(message)
        counts = np.bincount(rows.request, minlength=len(batch))
        if not counts.any():
            return Draft.empty(len(batch))
        names = [batch.request(i).id for i in np.flatnonzero(counts).tolist()]
        for cache in self._caches:
            cache.rewind(names)
        with torch.inference_mode():
            features = self._heads[0].features(rows)
            turn = _Turn(self._heads, self._caches, self._sampler, batch, counts)
            flow = _Flow(rows.request.astype(np.int64), rows.positions.astype(np.int64), features)
            for module in range(len(self._heads)):
                flow = self._with_waiting(flow, module, turn)
                flow = turn.run(module, 0, flow)
            for again in range(1, -(-int(turn.limits.max()) // len(self._heads))):
                flow = turn.next_flow(again)
                for module in range(len(self._heads)):
                    flow = turn.run(module, again, flow)
            return turn.draft()

    def _with_waiting(self, flow: _Flow, module: int, turn: _Turn) -> _Flow:
        """Put rows that waited for their token in front of their requests' new ones; note those that wait from now."""
        waiting = {i: self._waiting[turn.batch.request(i).id] for i in turn.here}
        old = [(i, *rows.pop(module)) for i, rows in waiting.items() if module in rows]
        if old:
            owner = np.concatenate([np.array([i for i, _, _ in old], np.int64), flow.owner])
            positions = np.concatenate([np.array([p for _, p, _ in old], np.int64), flow.positions])
            features = torch.cat([torch.stack([state for _, _, state in old]), flow.features])
            order = np.argsort(owner, kind="stable")
            flow = _Flow(owner[order], positions[order], features[_on(features.device, order)])
        for row in np.flatnonzero(flow.positions + module + 1 == turn.known[flow.owner]).tolist():
            owner_ = int(flow.owner[row])
            waiting[owner_][module] = (int(flow.positions[row]), flow.features[row].clone())
        return flow


class _Turn:
    """One call of `propose`: what is known of each request, and the drafts so far."""

    def __init__(
        self,
        heads: Sequence[FeatureHead],
        caches: Sequence[DraftCache],
        sampler: DraftSampler,
        batch: BatchView,
        counts: Indices,
    ) -> None:
        """Begin with no drafts; `counts` [n] are the new rows of each request."""
        self._heads, self._caches, self._sampler = heads, caches, sampler
        self.batch = batch
        self.here: list[int] = np.flatnonzero(counts).tolist()
        self.limits = np.where(counts > 0, batch.max_draft, 0).astype(np.int64)  # [n] the most drafts
        self.known = np.array([len(view.tokens) for view in batch.requests], np.int64)  # [n] ids
        self._chain = np.cumsum(self.limits > 0) - 1  # [n] number of the request among those that draft
        self._picks: Picks | None = None
        self._drafted: Tensor | None = None  # [A, depths] target ids
        self._ends: Tensor | None = None  # [A, modules, H] what each module made of the last row

    def run(self, module: int, again: int, flow: _Flow) -> _Flow:
        """Run the rows whose tokens are known or drafted, and draft one token more; returns the rows behind it.

        `again` is how often the modules have had their turn before.
        """
        depth = again * len(self._heads) + module
        place = flow.positions + 1 + module
        reach = self.known + np.where(self.limits > depth, depth, 0)
        rows = np.flatnonzero(place < reach[flow.owner])
        flow, place = flow.take(rows), place[rows]
        if not len(rows):
            return flow
        owners, counts = np.unique(flow.owner, return_counts=True)
        final = np.bincount(flow.owner[place < self.known[flow.owner]], minlength=len(self.batch))[owners]
        head, cache = self._heads[module], self._caches[module]
        names = [self.batch.request(i).id for i in owners.tolist()]
        step = cache.append(names, counts.tolist(), final.tolist())
        device = flow.features.device
        tokens, positions = self._tokens(flow.owner, place, device), _on(device, flow.positions)
        states = head.forward(tokens, flow.features, positions, cache.arena, step, depth)
        drafting = self.limits[owners] > depth
        behind = _Flow(flow.owner, flow.positions, head.feedback(states))
        if drafting.any():
            last = _on(device, (np.cumsum(counts) - 1)[drafting])
            self._pick(head, states[last], owners[drafting], depth)
            self._keep_ends(module, behind.features[last], owners[drafting])
        return behind

    def next_flow(self, again: int) -> _Flow:
        """Return the rows with which the modules begin again, for the requests that want more drafts."""
        modules = len(self._heads)
        owners = np.flatnonzero(self.limits > again * modules)
        first = self.batch.run_len[owners].astype(np.int64) + (again - 1) * modules
        assert self._ends is not None  # only asked for where some request wants more drafts than there are modules
        ends = self._ends[_on(self._ends.device, self._chain[owners])]
        positions = (first[:, None] + np.arange(modules)).reshape(-1)
        return _Flow(np.repeat(owners, modules), positions, ends.flatten(0, 1))

    def draft(self) -> Draft:
        """Return the drafts of the whole batch."""
        if self._picks is None:
            return Draft.empty(len(self.batch))
        return spread(self._picks.draft(), np.flatnonzero(self.limits), len(self.batch))

    def _tokens(self, owner: Indices, place: Indices, device: torch.device) -> Tensor:
        """Return the ids [N] at positions `place`, drafts behind the known ones."""
        ids = np.zeros(len(place), np.int64)
        for i in np.unique(owner).tolist():
            own = np.flatnonzero((owner == i) & (place < self.known[i]))
            ids[own] = self.batch.request(i).tokens[place[own]]
        tokens = _on(device, ids)
        drafted = np.flatnonzero(place >= self.known[owner])
        if len(drafted):
            assert self._drafted is not None  # the modules before have drafted what stands there
            chains, depths = self._chain[owner[drafted]], (place - self.known[owner])[drafted]
            tokens[_on(device, drafted)] = self._drafted[_on(device, chains), _on(device, depths)]
        return tokens

    def _pick(self, head: FeatureHead, states: Tensor, owners: Indices, depth: int) -> None:
        """Draft from states [a, H] of the last rows of requests `owners`."""
        if self._picks is None:
            wanting = np.flatnonzero(self.limits)
            limits: IntArray = self.batch.max_draft[wanting]
            names = [self.batch.request(i).id for i in wanting.tolist()]
            drafts = Round(wanting, names, limits, self.batch.run_len[wanting], states, self.batch)
            self._picks = self._sampler.begin(drafts, head.d2t)
            self._drafted = torch.zeros((len(wanting), int(limits.max())), dtype=torch.int64, device=states.device)
        chains = self._chain[owners]
        assert self._drafted is not None  # made with the picks
        self._drafted[_on(states.device, chains), depth] = self._picks.pick(head.logits(states), chains, depth)

    def _keep_ends(self, module: int, ends: Tensor, owners: Indices) -> None:
        """Keep what a module made of the last rows, if the modules will be used again."""
        if int(self.limits.max()) <= len(self._heads):
            return
        if self._ends is None:
            size = (int((self.limits > 0).sum()), len(self._heads), ends.shape[-1])
            self._ends = ends.new_zeros(size)
        self._ends[_on(ends.device, self._chain[owners]), module] = ends


def _on(device: torch.device, array: Indices) -> Tensor:
    return to_device(np.ascontiguousarray(array), device)
