"""Which texts are worth keeping: finds answers that loop, and texts that are nearly those of before; knows ids only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

LONGEST_PERIOD: Final = 96
LEAST_LOOP: Final = 24  # ids of a loop at least, however short its period
TIMES: Final = 3  # a period that comes so often in sequence is a loop


def before_loop(ids: npt.NDArray[np.int32]) -> int | None:
    """Return how many ids to keep of a text that ends in a loop, its first two periods included; None without one.

    A loop is a period of up to 96 ids that fills the end of the text three times, and 24 ids at least.
    """
    for period in range(1, min(LONGEST_PERIOD, len(ids) // TIMES) + 1):
        length = max(TIMES * period, LEAST_LOOP)
        if len(ids) < length:
            return None
        if ids[-1] != ids[-1 - period]:
            continue
        same = ids[period:] == ids[:-period]
        if same[-(length - period) :].all():
            others = np.flatnonzero(~same)
            start = int(others[-1]) + 1 if len(others) else 0
            return start + 2 * period
    return None


class Seen:
    """Runs of n ids, or of n words, of all texts so far; a text of which most runs were there before is not new."""

    def __init__(self, n: int, most: float, below: Seen | None = None) -> None:
        """Compare runs of `n`; at most the share `most` may have been there before, here or in `below`."""
        self._n, self._most, self._below = n, most, below
        self._runs: set[int] = set()

    def above(self) -> Seen:
        """Return one that knows what this one knows, and learns for itself alone."""
        return Seen(self._n, self._most, self)

    def add(self, ids: Sequence[Hashable]) -> bool:
        """Return whether a text is new, and remember it then."""
        runs = self._of(ids)
        known = sum(run in self for run in runs)
        if known > self._most * len(runs):
            return False
        self._runs |= runs
        return True

    def learn(self, ids: Sequence[Hashable]) -> None:
        """Remember a text, new or not."""
        self._runs |= self._of(ids)

    def __contains__(self, run: int) -> bool:
        """Return whether a run was there before."""
        return run in self._runs or (self._below is not None and run in self._below)

    def _of(self, ids: Sequence[Hashable]) -> set[int]:
        """Return hashes of the runs; a text of fewer than n is one run."""
        return {hash(tuple(ids[i : i + self._n])) for i in range(max(1, len(ids) - self._n + 1))}
