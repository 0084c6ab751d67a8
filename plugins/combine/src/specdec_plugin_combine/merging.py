"""What the rule `merge` asks of a backend of the op `draft_merge`, and where its numbers stand; knows no backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from specdec_plugin_combine.estimate import DEPTHS, PRIOR, PRIOR_RATE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from specdec_core.draft import IntArray

    FloatArray = npt.NDArray[np.float32]

CLASSES: Final = 20  # of a part's own estimates: the chance of a node once its parent was right, in twentieths
COUNTED: Final = DEPTHS + CLASSES  # what is counted apart: depths of nodes without an estimate, classes of the others
ROOM: Final = 64  # nodes of all parts before the arrays grow


class Merger(Protocol):
    """One request's drafts of all parts as one tree, and what each part's drafts of it were worth.

    A part's node has a chance once its parent is right: by the part's own estimate, as what such estimates turned out
    to be worth in this request; without one, by how often its drafts came true at that depth. A node that several
    parts drafted is wrong if all are. Its chance is that of its parent, times its own.
    """

    def __init__(self, parts: int) -> None:
        """Begin with no drafts, and with the same assumption for all parts."""

    def clear(self) -> None:
        """Begin the drafts of a step."""

    def add(self, part: int, tokens: IntArray, parents: IntArray | None, estimates: FloatArray | None) -> None:
        """Join a part's draft [n], with parents (None = a chain) and estimates as in `specdec_core.draft.Draft`."""

    def pick(self, most: int, out: IntArray, confidence: FloatArray, start: int) -> int:
        """Write the `most` likeliest nodes, the likeliest first and of equals the one drafted first; return how many.

        Ids go to out[0] [room] from `start` on, parents within the tree to out[1], to out[2] the first part that
        drafted the node, and to `confidence` the chance that it and all before it are right.
        """

    def compare(self, gained: IntArray) -> None:
        """Learn from the ids that followed."""


MakeMerger = Callable[[int], Merger]


def assumed(key: int) -> tuple[float, float]:
    """Return how many drafts under `key` a new request is assumed to have seen, and how many of them were right."""
    return PRIOR, PRIOR * (PRIOR_RATE if key < DEPTHS else (key - DEPTHS + 0.5) / CLASSES)
