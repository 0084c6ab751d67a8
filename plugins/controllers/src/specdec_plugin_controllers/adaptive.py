"""`adaptive`: each request drafts as many tokens as bring most tokens per second, others going on as they do."""

from __future__ import annotations

from typing import Final

import numpy as np

from specdec_plugin_controllers.pacing import NEW, Paced
from specdec_plugin_controllers.places import FloatArray, IntArray, Places


class Adaptive(Paced):
    """k of each request by its own acceptance and by measured costs; another k must promise a little more."""

    def __init__(self, places: Places, probe_every: int, hysteresis: float) -> None:
        """`hysteresis` is by what share more tokens per second another k must promise."""
        super().__init__(places, probe_every)
        self._hysteresis: Final = hysteresis

    def choose(self, slots: IntArray, most: IntArray) -> IntArray:
        """Return the best index into the ladder for each request, with the present choices of the others."""
        ladder, each = self.places.ladder, np.arange(len(slots))
        gained = _from_none(self.places.gains(slots))
        ran = _from_none(self.places.rows(slots))
        now = np.where(self._choice[slots] == NEW, 0, self._choice[slots])
        tokens, rows = 1 + gained[each, now], 1 + ran[each, now]
        longest = _longest_other(np.minimum(ladder[now], most))
        rates = (tokens.sum() - tokens)[:, None] + 1 + gained
        rates /= self.step_ms(
            (rows.sum() - rows)[:, None] + 1 + ran, np.maximum(longest[:, None], np.minimum(ladder, most[:, None]))
        )
        rates = np.where(ladder <= np.maximum(most[:, None], 0), rates, 0.0)
        best = rates.argmax(axis=1)
        better = rates[each, best] > (1 + self._hysteresis) * rates[each, now]
        fresh = (self._choice[slots] == NEW) | (ladder[now] > most)
        return np.where(better | fresh, best, now)


def _from_none(steps: FloatArray) -> FloatArray:
    """Return [n, m + 1]: sums of the first 0..m entries of each row."""
    sums: FloatArray = np.concatenate([np.zeros((len(steps), 1)), np.cumsum(steps, axis=1)], axis=1)
    return sums


def _longest_other(limits: IntArray) -> IntArray:
    """Return for each request the largest limit of all others, 0 for one alone."""
    if len(limits) < 2:
        return np.zeros_like(limits)
    order = np.argsort(limits)
    others = np.full(len(limits), limits[order[-1]])
    others[order[-1]] = limits[order[-2]]
    return others
