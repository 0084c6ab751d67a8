"""What a method's estimates turned out to be worth: how often drafts that it found so likely came true; no clock.

An estimate is taken as the chance of a draft once the one before it was right, in twenty classes. Every draft is
compared with the text that came, whether it was verified or not: the text is the target's own, so that a draft which
was cut tells as much as one that ran, and nothing has to be tried to be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CLASSES: Final = 20
PRIOR: Final = 6.0  # drafts that an estimate counts for before any of its class was compared
KEPT: Final = 0.995  # weight of what is known of a class against one more draft,
OWN_KEPT: Final = 0.95  # and of what is known of one request;
OWN_PRIOR: Final = 4.0  # drafts that what is known of all requests counts for in one
SURE: Final = 0.99  # no draft counts as more likely than this


class Followed:
    """One request: its last drafts, and how its drafts fare beside those of all requests.

    known    how many ids it had when they were made
    right    drafts of it that came true, older ones counting less; `expected`: how many would have, were it like all
    """

    __slots__ = ("classes", "expected", "known", "parents", "right", "tokens")

    def __init__(self) -> None:
        """Begin with no drafts."""
        self.known = 0
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.classes: list[int] = []
        self.right = 0.0
        self.expected = 0.0

    @property
    def factor(self) -> float:
        """By what the chances of its drafts differ from those of all requests."""
        return (self.right + OWN_PRIOR) / (self.expected + OWN_PRIOR)


class Chances:
    """The share of drafts that came true, by the class of their estimates."""

    def __init__(self) -> None:
        """Believe the estimates until drafts were compared."""
        self._tried = [PRIOR] * CLASSES
        self._right = [PRIOR * (c + 0.5) / CLASSES for c in range(CLASSES)]

    def shown(
        self, one: Followed, known: int, tokens: list[int], parents: list[int], estimates: Sequence[float]
    ) -> list[float]:
        """Keep the drafts of a request that has `known` ids, and return the chance of each, with all before it.

        `estimates` are those of `Draft.confidence`, `parents` those of a tree (of a chain -1, 0, 1, ...). No chance is
        above that of the parent.
        """
        factor, rates = one.factor, [r / t for r, t in zip(self._right, self._tried, strict=True)]
        classes: list[int] = []
        chances: list[float] = []
        for parent, estimate in zip(parents, estimates, strict=True):
            before = 1.0 if parent < 0 else estimates[parent]
            share = min(estimate / before, 1.0) if before > 0.0 else 0.0
            own = min(int(share * CLASSES), CLASSES - 1)
            classes.append(own)
            chances.append(min(rates[own] * factor, SURE) * (1.0 if parent < 0 else chances[parent]))
        one.known, one.tokens, one.parents, one.classes = known, tokens, parents, classes
        return chances

    def compare(self, one: Followed, gained: Sequence[int]) -> None:
        """Compare the last drafts of a request with the ids that it has gained since."""
        if not gained or not one.tokens:
            return
        depths = {-1: 0}  # of the newest id and of the drafts that came true
        for node, (token, parent, own) in enumerate(zip(one.tokens, one.parents, one.classes, strict=True)):
            depth = depths.get(parent)
            if depth is None or depth >= len(gained):
                continue
            right = token == gained[depth]
            if right:
                depths[node] = depth + 1
            one.right = OWN_KEPT * one.right + right
            one.expected = OWN_KEPT * one.expected + self._right[own] / self._tried[own]
            self._tried[own] = KEPT * self._tried[own] + 1
            self._right[own] = KEPT * self._right[own] + right
        one.tokens = []
