"""`goodput`: of all drafts that a batch might make, as many run as bring most tokens per second.

Liu et al., Optimizing Speculative Decoding for Serving Large Language Models Using Goodput (arXiv 2406.14066), section
4, with one number of drafts for each request and times as they were measured in place of a linear model.
"""

from __future__ import annotations

import numpy as np

from specdec_plugin_controllers.pacing import Paced
from specdec_plugin_controllers.places import IntArray


class Goodput(Paced):
    """k of each request so that the whole batch gains most tokens per second."""

    def choose(self, slots: IntArray, most: IntArray) -> IntArray:
        """Return an index into the ladder for each request.

        Places of all requests are put in order of what they bring for a row, those of one request in sequence, and of
        all beginnings of that order the one with the best rate is taken.
        """
        ladder = self.places.ladder
        gains, rows = self.places.gains(slots), self.places.rows(slots)
        allowed = ladder[1:] <= most[:, None]
        worth = np.minimum.accumulate(gains / np.maximum(rows, 1e-9), axis=1)
        order = np.argsort(-np.where(allowed, worth, -1.0), axis=None, kind="stable")[: int(allowed.sum())]
        request, place = np.divmod(order, gains.shape[1])
        n = len(slots)
        tokens = n + np.concatenate([[0.0], np.cumsum(gains[request, place])])
        ran = n + np.concatenate([[0.0], np.cumsum(rows[request, place])])
        longest = np.concatenate([[0], np.maximum.accumulate(ladder[1 + place])])
        taken = int(np.argmax(tokens / self.step_ms(ran, longest)))
        return np.bincount(request[:taken], minlength=n)
