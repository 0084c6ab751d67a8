"""Maps from the rows of a head to ids of its target: what is wrong with their values. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress


def ids_problem(what: str, ids: Sequence[int], vocab_size: int) -> str | None:
    """Return what is wrong with the target's ids [V_d] that `what` names, None if nothing is.

    Each is within 0 .. vocab_size - 1, and none is named twice.
    """
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        return f"{what} names ids {min(ids)} .. {max(ids)}, and they must be within 0 .. {vocab_size - 1}"
    twice = len(ids) - len(set(ids))
    return f"{what} names {twice} ids more than once" if twice else None


def map_problem(d2t: Sequence[int], t2d: Sequence[int] | None, vocab_size: int) -> str | None:
    """Return what is wrong with the offsets d2t [V_d] and the marks t2d [V] of a head, None if nothing is.

    Row i stands for the id i + d2t[i]; t2d, where there is one, marks just those ids. Zeros alone that are no shorter
    than the target's vocabulary are no map.
    """
    if len(d2t) >= vocab_size and not any(d2t):
        return None
    ids = [row + offset for row, offset in enumerate(d2t)]
    problem = ids_problem("the map d2t", ids, vocab_size)
    if problem is None and t2d is not None and list(compress(range(len(t2d)), t2d)) != sorted(ids):
        return "the maps d2t and t2d of the checkpoint name different ids of the target"
    return problem
