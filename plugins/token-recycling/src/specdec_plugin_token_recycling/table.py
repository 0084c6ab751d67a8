"""What the proposer asks of a backend of the op `recycling_table`; knows no backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from specdec_core.draft import BoolArray, IntArray

    FloatArray = npt.NDArray[np.float32]
    Contents = tuple[IntArray, IntArray, FloatArray]
    Rows = tuple[IntArray, IntArray, BoolArray, IntArray, FloatArray]  # tokens, parents, accepted, top ids, logprobs

SPREAD: Final = 1_000_003
CLASSES: Final = 20  # of probabilities, in twentieths
KEPT: Final = 0.999  # weight of what is known of a class against one more candidate
PRIOR: Final = 4.0  # right candidates that a class is assumed to have had, as many as expected


def place_of(before: int, token: int, pairs: int) -> int:
    """Return where a pair is kept."""
    return (before * SPREAD + token) % pairs


class Table(Protocol):
    """The candidates that the target last showed after an id, and after a pair of ids; at most n, the likeliest first.

    A pair is kept in the place that `place_of` gives it, and drives out the one that was there. What comes after an id
    is looked up by the pair of the id before it and itself, and where that is not kept, by the id alone.
    """

    def __init__(self, vocabulary: int, n: int, pairs: int) -> None:
        """Make an empty table of ids below `vocabulary`, with places for so many pairs."""

    def __len__(self) -> int:
        """Return the number of ids that have candidates, pairs not counted."""

    def learn(self, before: int, rows: Rows) -> None:
        """Take in the rows of one request in one step; `before` is the id before the first one, -1 for none.

        All rows in order, then those of the text again: what was right wins. A candidate outside the vocabulary, or
        without a finite log-probability, ends its row; a row without candidates is passed over.
        """

    def compare(self, before: int, rows: Rows, newest: int) -> None:
        """Learn what probabilities are worth, from rows as in `learn`; before that takes them in.

        `newest` is the id after the last accepted row. What is kept for an accepted row is compared with the id that
        followed, all candidates of it, drafted or not. Apart for pairs and for single ids, and for each twentieth of
        probability, it is kept how many candidates were right and how many should have been; from then on a
        probability counts by the ratio of the two, (right + PRIOR) / (expected + PRIOR), and as 1 at most.
        """

    def put(self, contents: Contents) -> None:
        """Take in what `contents` of another table returned, in order."""

    def grow(
        self, last: tuple[int, int], most: int, least: float, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft the likeliest tree behind the last two ids, and return its number of nodes, at most `most`.

        The first of the two is -1 where there is none.

        A node's probability is the product of those on its path, each as `compare` has found it. The likeliest one
        comes next, of equals that of the parent which was made first; none is less likely than `least`. Ids go to
        out[0] [room] from `start` on, parents within the tree to out[1], probabilities to `confidence`.
        """

    def unfold(
        self, last: tuple[int, int], most: int, template: IntArray, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft the first `most` nodes of a template, [2, nodes]: the parent of each node, -1 = the id, and its rank.

        A node whose candidate is not known is left out, with all behind it. Results as for `grow`.
        """

    def contents(self) -> Contents:
        """Return keys [m, 2], the id before and the id, candidates [m, n], and their log-probabilities.

        They are in order of keys. The id before is -1 where candidates are kept for an id alone; a candidate is -1
        where there is none.
        """

    def memory_bytes(self) -> int:
        """Return the bytes held."""


MakeTable = Callable[[int, int, int], Table]
