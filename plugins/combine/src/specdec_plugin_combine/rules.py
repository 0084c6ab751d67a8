"""One row's draft out of the drafts of several parts; pure functions over small lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartRow:
    """What one part drafted for one request; the fields are those of `specdec_core.draft.Draft`, for one row.

    origin  the part's index, one a node
    q_row   the row of q that a node was drawn from, in the numbering of all parts; -1 = a point mass
    confidence  the part's own estimate for each node that it and all before it are accepted, None if it gives none
    """

    tokens: list[int]
    parents: list[int] | None
    origin: list[int]
    q_row: list[int] | None = None
    confidence: list[float] | None = None

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.tokens)


EMPTY = PartRow([], None, [])


def first(rows: Sequence[PartRow]) -> PartRow:
    """Return the first draft that is not empty."""
    return next((row for row in rows if len(row)), EMPTY)


def longest(rows: Sequence[PartRow]) -> PartRow:
    """Return the draft with most tokens, the first among equals, as point masses."""
    row = max(rows, key=len, default=EMPTY)
    return PartRow(row.tokens, row.parents, row.origin, confidence=row.confidence)


def extend(rows: Sequence[PartRow]) -> PartRow:
    """Return the first draft that is not empty, continued by the longest other one that begins with it."""
    base = first(rows)
    n = len(base)
    best = base
    for row in rows:
        if len(row) > len(best) and row.tokens[:n] == base.tokens:
            best = row
    if best is base:
        return base
    q_row = None if base.q_row is None else [*base.q_row, *[-1] * (len(best) - n)]
    confidence = None
    if best.confidence is not None and (base.confidence is not None or not n):
        confidence = [*(base.confidence or ()), *best.confidence[n:]]
    return PartRow(best.tokens, None, [*base.origin, *best.origin[n:]], q_row, confidence)
