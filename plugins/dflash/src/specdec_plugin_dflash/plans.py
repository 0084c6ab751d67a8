"""How blocks become drafts: all places at once (DFlash), or one after the other, each by those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.draft import Draft, IntArray
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.device_copies import all_to_device, read, to_device
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import FeatureHead, Round
from specdec_plugin_dflash import choosers
from specdec_plugin_dflash.choosers import Chooser
from specdec_plugin_dflash.head import BlockHead, MarkovHead

Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class Places:
    """The rows of a round that are places: their states [m, H_d], request and depth of each, [m].

    limits  [A] how many places of each request are drafted
    """

    states: Tensor
    owner: Indices
    depth: Indices

    limits: IntArray

    def at(self, depth: int) -> tuple[Tensor, Indices]:
        """Return the rows at a depth that is drafted, as indices on the device, and their requests."""
        rows = np.flatnonzero((self.depth == depth) & (depth < self.limits[self.owner]))
        return to_device(rows, self.states.device), self.owner[rows]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a block is made.

    mask   the id in the rows behind the newest one
    whole  places of a whole block, 0 for a head whose rows see only earlier ones
    first  row of the first place
    more   rows that a block has besides its places
    """

    mask: int
    whole: int
    first: int
    more: int


class BlockPlan:
    """One pass over a block a request: each place is drafted without knowing what the others draft.

    Rows of a block see each other both ways, so its length decides every draft: where a request may have fewer drafts,
    the whole block runs all the same and its first places are drafted, those past the longest context included.
    """

    def __init__(self, head: BlockHead, sampler: DraftSampler, shape: Shape) -> None:
        """Take the head, what picks tokens, and the form of blocks."""
        self._head, self._sampler, self._shape = head, sampler, shape

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens."""
        places = self._places(drafts, newest_ids(drafts), cache)
        logits = self._head.logits(places.states)
        picks = self._sampler.begin(drafts, self._head.d2t)
        for depth in range(int(drafts.limits.max())):
            rows, active = places.at(depth)
            picks.pick(logits[rows], active, depth)
        return picks.draft()

    def _places(self, drafts: Round, newest: Indices, cache: DraftCache, *, whole: bool = False) -> Places:
        """Run the blocks, and return the places that are drafted; with `whole` those that are not as well."""
        shape = self._shape
        of_blocks = np.maximum(drafts.limits.astype(np.int64), shape.whole)
        counts = of_blocks + shape.more
        offset = np.concatenate([np.arange(count) for count in counts.tolist()])
        owner = np.repeat(np.arange(len(counts)), counts)
        tokens = np.where(offset == 0, newest[owner], shape.mask)
        device = drafts.states.device
        step = cache.append(drafts.names, counts.tolist(), mutual=True)
        ids, positions, places = all_to_device((tokens, drafts.positions[owner] + offset, offset), device)
        states = self._head.run(ids, positions, places, cache.arena, step)
        place = offset - shape.first
        end = of_blocks if whole else drafts.limits
        rows = np.flatnonzero((place >= 0) & (place < end[owner]))
        return Places(states[to_device(rows, device)], owner[rows], place[rows], drafts.limits)


class MarkovPlan(BlockPlan):
    """One pass over a block, then its places in order, each with a bias from the draft before it."""

    def __init__(
        self,
        head: BlockHead,
        sampler: DraftSampler,
        shape: Shape,
        markov: MarkovHead,
        *,
        threshold: float | None,
    ) -> None:
        """Take what `BlockPlan` takes, the Markov head, and the confidence below which a draft ends, None for never."""
        super().__init__(head, sampler, shape)
        self._markov, self._threshold = markov, threshold

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens, or shorter ones where the confidence falls below the threshold."""
        newest = newest_ids(drafts)
        places = self._places(drafts, newest, cache)
        base = self._head.logits(places.states)
        candidates = self._markov.candidates(base)
        picks = self._sampler.begin(drafts, self._head.d2t)
        tokens = to_device(newest, base.device)
        sure: list[tuple[Indices, Tensor]] = []  # of each depth: the chains, and their confidence
        for depth in range(int(drafts.limits.max())):
            rows, active = places.at(depth)
            chains = to_device(active, base.device)
            before = self._markov.before(tokens[chains])
            among = None if candidates is None else candidates[rows]
            picked = picks.pick(self._markov.logits(base[rows], before, among), active, depth)
            tokens = tokens.index_copy(0, chains, picked)
            if self._markov.is_confident:
                sure.append((active, self._markov.confidence(places.states[rows], before)))
        draft = picks.draft()
        return self._with_confidence(draft, sure) if sure else draft

    def _with_confidence(self, draft: Draft, of_depths: list[tuple[Indices, Tensor]]) -> Draft:
        """Attach what is known of each draft, and end chains at the threshold.

        A place's confidence depends on the drafts before it alone, so where a drawn chain ends, its distributions stay
        right.
        """
        confidence = np.full((len(draft.lengths or ()), len(of_depths)), np.nan, np.float32)
        for depth, ((active, _), values) in enumerate(zip(of_depths, read([v for _, v in of_depths]), strict=True)):
            confidence[active, depth] = values
        drafted = ~np.isnan(confidence)
        draft.confidence = np.cumprod(confidence, axis=1, dtype=np.float32)[drafted]  # of a place and all before it
        if self._threshold is None:
            return draft
        sure = np.logical_and.accumulate(confidence >= self._threshold, axis=1)
        return draft.keep(sure[drafted])


class WalkPlan(BlockPlan):
    """One pass over a block, then its places in order, each chosen by a walk that knows the drafts before it."""

    def __init__(self, head: BlockHead, sampler: DraftSampler, shape: Shape, chooser: Chooser) -> None:
        """Take what `BlockPlan` takes, and what goes through the places."""
        super().__init__(head, sampler, shape)
        self._chooser = chooser

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens."""
        newest = newest_ids(drafts)
        places = self._places(drafts, newest, cache, whole=self._chooser.whole)
        base = self._head.logits(places.states)
        picks = self._sampler.begin(drafts, self._head.d2t)
        ids = to_device(newest, base.device)
        walk = self._chooser.begin(choosers.Places(places.states, base, ids, drafts.states))
        for depth in range(int(drafts.limits.max())):
            rows, active = places.at(depth)
            chains = to_device(active, base.device)
            walk.take(chains, picks.pick(walk.logits(rows, chains, depth), active, depth))
        return picks.draft()


def newest_ids(drafts: Round) -> Indices:
    """Return the newest id of each request, [A]: sampled, and not yet run by the target."""
    requests = (drafts.batch.request(i) for i in drafts.index.tolist())
    pairs = zip(requests, drafts.positions.tolist(), strict=True)
    return np.array([int(request.tokens[position]) for request, position in pairs], np.int64)
