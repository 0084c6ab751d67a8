"""Where an output stands in its prediction: follows it id by id, and finds the place again after a difference.

The place is a function of the prediction and of the output's ids alone, in whatever pieces these arrive.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from specdec_core.draft import IntArray

LONGEST: Final = 8  # ids before a place that are compared with the output's last ones
NEAR: Final = 16  # how far from the expected place a single equal id counts as the same place


class Alignment:
    """The place of one output in its prediction.

    After a difference the output's last ids are looked up in the prediction; the longest match counts, and among equals
    the nearest to where the output was expected to be. A single equal id counts only near that place. Where no
    id matches, the id that differs is taken for a replacement of the expected one, once. After m places in a row that
    were wrong, m - 1 ids must match before anything is drafted again, so that a prediction that has nothing to do
    with the output soon costs nothing.
    """

    def __init__(self, prediction: IntArray) -> None:
        """Begin before the first id of `prediction`, [m] int32."""
        self._prediction = prediction
        self._place = 0  # of the id that is expected next
        self._follows = True  # whether the place is trusted, so that ids from it on are drafted
        self._misses = 0
        self._tail: list[int] = []  # the output's last ids, at most LONGEST

    def draft(self, limit: int) -> IntArray:
        """Return at most `limit` expected ids; none where the place is unknown or the prediction has ended."""
        if not self._follows:
            return self._prediction[:0]
        return self._prediction[self._place : self._place + limit]

    def extend(self, ids: IntArray) -> None:
        """Take in ids [n] that the output has gained."""
        done = 0
        while done < len(ids):
            done += self._follow(ids[done:])
            if done < len(ids):
                self._differ(int(ids[done]))
                done += 1

    def _follow(self, ids: IntArray) -> int:
        """Advance over the ids that are the expected ones; return how many these are."""
        if not self._follows:
            return 0
        expected = self._prediction[self._place : self._place + len(ids)]
        equal = expected == ids[: len(expected)]
        count = len(equal) if equal.all() else int(equal.argmin())
        if count:
            self._place += count
            self._misses = 0
            self._tail = (self._tail + ids[:count][-LONGEST:].tolist())[-LONGEST:]
        return count

    def _differ(self, token: int) -> None:
        """Take in an id that is not the expected one, and look for the place after it."""
        self._tail = [*self._tail, token][-LONGEST:]
        if self._follows:
            self._misses = min(self._misses + 1, LONGEST)
        expected = min(self._place + 1, len(self._prediction))
        place, matched = self._nearest(expected)
        self._place = place
        self._follows = matched >= self._misses - 1

    def _nearest(self, expected: int) -> tuple[int, int]:
        """Return the place after the best match of the output's last ids and how many match; (expected, 0) for none."""
        places = np.flatnonzero(self._prediction == self._tail[-1]) + 1
        if len(places) == 0:
            return expected, 0
        length = np.ones(len(places), np.int64)
        going = np.ones(len(places), np.bool_)
        for back in range(2, len(self._tail) + 1):
            there = places - back
            going &= (there >= 0) & (self._prediction[np.maximum(there, 0)] == self._tail[-back])
            if not going.any():
                break
            length += going
        distance = np.abs(places - expected)
        length[(length == 1) & (distance > NEAR)] = 0
        best = int(np.lexsort((distance, -length))[0])
        return (int(places[best]), int(length[best])) if length[best] else (expected, 0)
