"""How often a draft's place was offered and accepted, by request: what one more draft brings; knows no cost.

A chain that may have k tokens is offered, and accepted, up to some place. Of every request, and of all together, it is
counted how often place j was accepted when place j - 1 was, and how often it was offered when place j - 1 was; places
beyond what was asked for tell nothing. The products are the chances that a chain gets so far. Text changes its
character, so that what is older counts less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specdec_core.stats import StepStats

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KEPT: Final = 0.95  # weight of what a request knows against one more draft,
KEPT_BY_ALL: Final = 0.995  # and of what is known of all requests together;
FADING: Final = 0.99  # weight that places keep which were not asked for in a step with drafts
PRIOR: Final = 3.0  # drafts that what is known of all counts for in one request
FIRST: Final = 0.7  # acceptance that is assumed before the first draft,
WHOLE: Final = 1.0  # and accepted drafts of a tree likewise
TRIED: Final = 1.0  # drafts behind which a place counts as tried

ACCEPTED, REACHED, OFFERED, ASKED = range(4)  # accepted of those whose place before was; offered of those likewise


class Places:
    """The counts of all requests that run; `whole` takes a draft as one place, as trees need whose nodes are no chain.

    ladder  [m + 1] the limits to choose from, 0 first
    """

    def __init__(self, k: int, *, whole: bool = False) -> None:
        """Take the most drafts of a request."""
        self.ladder: Final[IntArray] = np.array([0, k]) if whole else np.arange(k + 1)
        self._whole: Final = whole
        self._size: Final = len(self.ladder) - 1
        self._slots: Final[dict[str, int]] = {}
        self._free: Final[list[int]] = []
        self._counts: FloatArray = np.zeros((4, 0, self._size))
        self._all: FloatArray = np.zeros((4, self._size))

    def __len__(self) -> int:
        """Return the number of requests that are known."""
        return len(self._slots)

    def slots(self, names: Sequence[str]) -> IntArray:
        """Return where each request is kept; new ones get a place."""
        return np.array([self._slots[name] if name in self._slots else self._add(name) for name in names], np.int64)

    def known(self, name: str) -> bool:
        """Return whether a request is known."""
        return name in self._slots

    def forget(self, name: str) -> int | None:
        """Drop a request; return where it was kept, None if it was not known."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._free.append(slot)
        return slot

    def learn(self, slots: IntArray, given: IntArray, stats: StepStats, rows: Sequence[int]) -> None:
        """Take in a step: of requests `slots`, rows `rows` of the figures, which were to get `given` drafts."""
        drafted, accepted = (np.array(values)[rows] for values in (stats.drafted, stats.accepted))
        if self._whole:
            seen = [accepted, np.ones_like(accepted), drafted, np.ones_like(accepted)]
            found = np.stack(seen).astype(np.float64)[:, :, None] * (given > 0)[None, :, None]
            asked = (given > 0)[:, None]
        else:
            places = np.arange(1, self._size + 1)
            asked = places <= given[:, None]
            got, came = places <= accepted[:, None], places <= drafted[:, None]
            reached, offered = places - 1 <= accepted[:, None], places - 1 <= drafted[:, None]
            found = np.stack([got, reached, came, offered]).astype(np.float64) * asked
        fading = np.where((given > 0)[:, None], FADING, 1.0)
        own = self._counts[:, slots]
        own[:2] *= np.where(found[REACHED] > 0, KEPT, np.where(asked, 1.0, fading))
        own[2:] *= np.where(found[ASKED] > 0, KEPT, np.where(asked, 1.0, fading))
        self._counts[:, slots] = own + found
        self._all = self._all * np.where(found.any(axis=(0, 1)), KEPT_BY_ALL, 1.0) + found.sum(axis=1)

    def gains(self, slots: IntArray) -> FloatArray:
        """Return [n, m]: accepted drafts that each step of the ladder is expected to add."""
        return self._chances(slots, ACCEPTED, REACHED, WHOLE if self._whole else FIRST)

    def rows(self, slots: IntArray) -> FloatArray:
        """Return [n, m]: drafts that each step of the ladder is expected to add, accepted or not."""
        return self._chances(slots, OFFERED, ASKED, float(self.ladder[-1]) if self._whole else 1.0)

    def _chances(self, slots: IntArray, happened: int, possible: int, first: float) -> FloatArray:
        """Return the products of the shares by place.

        What is not known yet of all requests is assumed as at the place before. In one request a place that was not
        tried lately is assumed to be as good as the one before it, or as it is for all if that is better.
        """
        seen, tried = self._counts[happened, slots].T, self._counts[possible, slots].T
        untried = tried < TRIED
        weight = 1.0 / (tried + PRIOR)
        fixed, moving = seen * weight, PRIOR * weight
        shares = self._shares(happened, possible, first)
        before, product = np.full(len(slots), first), np.ones(len(slots))
        chances: FloatArray = np.empty((len(slots), self._size))
        for place, share in enumerate(shares):
            prior = np.where(untried[place], np.maximum(share, before), share) if place else share
            before = fixed[place] + moving[place] * prior
            product = product * before
            chances[:, place] = product
        return chances

    def _shares(self, happened: int, possible: int, first: float) -> list[float]:
        """Return the share of each place over all requests; one that was not tried leans on the one before it."""
        shares, share = [], first
        for seen, tried in zip(self._all[happened].tolist(), self._all[possible].tolist(), strict=True):
            share = (seen + PRIOR * share) / (tried + PRIOR)
            shares.append(share)
        return shares

    def _add(self, name: str) -> int:
        if not self._free:
            size = self._counts.shape[1]
            grown = np.zeros((4, max(8, 2 * size), self._size))
            grown[:, :size] = self._counts
            self._free.extend(range(grown.shape[1] - 1, size - 1, -1))
            self._counts = grown
        slot = self._free.pop()
        self._counts[:, slot] = 0.0
        self._slots[name] = slot
        return slot
