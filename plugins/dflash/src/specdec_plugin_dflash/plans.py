"""How blocks become drafts: all places at once (DFlash), or one after the other with a Markov chain (DSpark)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import FeatureHead, Round
from specdec_plugin_dflash.head import BlockHead, MarkovHead

Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class Places:
    """The rows of a round that are sampled from: their states [m, H_d], and request and depth of each, [m]."""

    states: Tensor
    owner: Indices
    depth: Indices

    def at(self, depth: int) -> tuple[Tensor, Indices]:
        """Return the rows at a depth, as indices on the device, and their requests."""
        rows = np.flatnonzero(self.depth == depth)
        return torch.from_numpy(rows).to(self.states.device), self.owner[rows]


class BlockPlan:
    """One pass over a block a request: each place is drafted without knowing what the others draft.

    Rows of a block see each other both ways, so its length decides every draft: where a request may have fewer drafts,
    the whole block runs all the same and its first places are drafted, those past the longest context included.
    """

    def __init__(
        self, head: BlockHead, sampler: DraftSampler, mask_token: int, places: int, *, from_anchor: bool
    ) -> None:
        """Take the head, what picks tokens, and the mask id.

        `places` is how many drafts a whole block has, 0 for a head whose rows see only earlier ones; `from_anchor`
        says that the row of the newest id is a place already.
        """
        self._head, self._sampler, self._mask_token = head, sampler, mask_token
        self._first = 0 if from_anchor else 1  # row of the first place
        self._whole = places

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens."""
        places = self._places(drafts, newest_ids(drafts), cache)
        logits = self._head.logits(places.states)
        picks = self._sampler.begin(drafts, self._head.d2t)
        for depth in range(int(drafts.limits.max())):
            rows, active = places.at(depth)
            picks.pick(logits[rows], active, depth)
        return picks.draft()

    def _places(self, drafts: Round, newest: Indices, cache: DraftCache) -> Places:
        """Run the blocks, and return the places that are drafted."""
        counts = np.maximum(drafts.limits.astype(np.int64), self._whole) + self._first
        offset = np.concatenate([np.arange(count) for count in counts.tolist()])
        owner = np.repeat(np.arange(len(counts)), counts)
        tokens = np.where(offset == 0, newest[owner], self._mask_token)
        device = drafts.states.device
        step = cache.append(drafts.names, counts.tolist(), mutual=True)
        ids = torch.from_numpy(tokens).to(device)
        positions = torch.from_numpy(drafts.positions[owner] + offset).to(device)
        states = self._head.run(ids, positions, cache.arena, step)
        place = offset - self._first
        rows = np.flatnonzero((place >= 0) & (place < drafts.limits[owner]))
        return Places(states[torch.from_numpy(rows).to(device)], owner[rows], place[rows])


class MarkovPlan(BlockPlan):
    """One pass over a block, then its places in order, each with a bias from the draft before it."""

    def __init__(
        self,
        head: BlockHead,
        sampler: DraftSampler,
        mask_token: int,
        places: int,
        markov: MarkovHead,
        *,
        from_anchor: bool,
        threshold: float | None,
    ) -> None:
        """Take what `BlockPlan` takes, the Markov head, and the confidence below which a draft ends, None for never."""
        super().__init__(head, sampler, mask_token, places, from_anchor=from_anchor)
        self._markov, self._threshold = markov, threshold

    def __call__(self, drafts: Round, head: FeatureHead, cache: DraftCache) -> Draft:
        """Return chains of `limits` tokens, or shorter ones where the confidence falls below the threshold."""
        newest = newest_ids(drafts)
        places = self._places(drafts, newest, cache)
        base = self._head.logits(places.states)
        candidates = self._markov.candidates(base)
        picks = self._sampler.begin(drafts, self._head.d2t)
        tokens = torch.from_numpy(newest).to(base.device)
        sure: list[tuple[Indices, Tensor]] = []  # of each depth: the chains, and their confidence
        for depth in range(int(drafts.limits.max())):
            rows, active = places.at(depth)
            chains = torch.from_numpy(active).to(base.device)
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

        A place's confidence depends on the drafts before it alone, so where a drawn chain ends, its laws stay right.
        """
        confidence = np.full((len(draft.lengths or ()), len(of_depths)), np.nan, np.float32)
        for depth, (active, values) in enumerate(of_depths):
            confidence[active, depth] = values.cpu().numpy()
        drafted = ~np.isnan(confidence)
        draft.confidence = np.cumprod(confidence, axis=1, dtype=np.float32)[drafted]  # of a place and all before it
        if self._threshold is None:
            return draft
        sure = np.logical_and.accumulate(confidence >= self._threshold, axis=1)
        return draft.keep(sure[drafted])


def newest_ids(drafts: Round) -> Indices:
    """Return the newest id of each request, [A]: sampled, and not yet run by the target."""
    requests = (drafts.batch.request(i) for i in drafts.index.tolist())
    pairs = zip(requests, drafts.positions.tolist(), strict=True)
    return np.array([int(request.tokens[position]) for request, position in pairs], np.int64)
