"""How far each part's drafts of one request have come true; pure counting, with no clock and no other request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

DEPTHS: Final = 16  # depths that are counted apart; deeper ones count as the last
PRIOR: Final = 2.0  # drafts that a new request is assumed to have seen at each depth,
PRIOR_RATE: Final = 0.6  # of which this share came true
KEPT: Final = 0.95  # weight of what is known against one more draft


class Estimate:
    """Of one part and one request: the chance at each depth that a draft comes true when the one before it did."""

    def __init__(self) -> None:
        """Begin with the prior."""
        self._tried = [PRIOR] * DEPTHS
        self._right = [PRIOR * PRIOR_RATE] * DEPTHS

    def rate(self, depth: int) -> float:
        """Return the chance at a depth, the first being 0."""
        at = min(depth, DEPTHS - 1)
        return self._right[at] / self._tried[at]

    def expected(self, length: int) -> float:
        """Return how many drafts of a chain are accepted on average."""
        total, chance = 0.0, 1.0
        for depth in range(length):
            chance *= self.rate(depth)
            total += chance
        return total

    def learn(self, right: int, length: int) -> None:
        """Take in a draft whose longest path has `length` tokens, of which the first `right` came true."""
        for depth in range(min(right + 1, length, DEPTHS)):
            self._tried[depth] = KEPT * self._tried[depth] + 1
            self._right[depth] = KEPT * self._right[depth] + (depth < right)


def depth_reached(tokens: Sequence[int], parents: Sequence[int] | None, gained: Sequence[int]) -> tuple[int, int]:
    """Return how many of the ids `gained` a draft foretold from the first one on, and the draft's own depth."""
    if parents is None:
        right = 0
        while right < min(len(tokens), len(gained)) and tokens[right] == gained[right]:
            right += 1
        return right, len(tokens)
    depths: list[int] = []
    at, right = -1, 0
    for node, parent in enumerate(parents):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        if parent == at and right < len(gained) and tokens[node] == gained[right]:
            at, right = node, right + 1
    return right, max(depths, default=0)
