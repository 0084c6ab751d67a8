"""The steps of a request at a smaller number of drafts, from those at a larger one; plain numbers, no engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """One decode step of a request: drafts that were verified, how many were accepted, ids that it kept (1 or more)."""

    drafted: int
    accepted: int
    kept: int


def at_limit(steps: Sequence[Seen], limit: int, measured: int) -> list[Seen]:
    """Return the steps that a request would have had with at most `limit` drafts, from those with `measured`.

    A stretch of ids that was accepted is cut anew: a drafter that had found it would have found what is left of it from
    any place inside. A step that was accepted whole, with as many drafts as it might have, is taken together with the
    next one, of which its drafter would have known the beginning. Ids of all steps stay the same in number.
    """
    if limit >= measured:
        return list(steps)
    found: list[Seen] = []
    for ids, beyond in _stretches(steps, measured):
        left = ids
        while left:
            drafted = min(limit, left - 1 + beyond)
            accepted = min(drafted, left - 1)
            found.append(Seen(drafted, accepted, accepted + 1))
            left -= accepted + 1
    return found


def _stretches(steps: Sequence[Seen], measured: int) -> Iterator[tuple[int, int]]:
    """Yield (ids kept, drafts behind them that were not accepted) of steps that belong together."""
    ids = 0
    for place, step in enumerate(steps):
        ids += step.kept
        whole = step.accepted == step.drafted >= measured
        if whole and place + 1 < len(steps):
            continue
        yield ids, step.drafted - step.accepted
        ids = 0
