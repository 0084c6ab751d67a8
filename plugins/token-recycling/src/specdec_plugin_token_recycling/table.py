"""What the proposer asks of a backend of the op `recycling_table`; knows no backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from specdec_core.draft import BoolArray, IntArray

    FloatArray = npt.NDArray[np.float32]
    Contents = tuple[IntArray, IntArray, FloatArray]


class Table(Protocol):
    """For each id the candidates that the target last showed after it, at most n, the likeliest first."""

    def __init__(self, vocabulary: int, n: int) -> None:
        """Make an empty table of ids below `vocabulary`."""

    def __len__(self) -> int:
        """Return the number of ids that have candidates."""

    def learn(self, tokens: IntArray, accepted: BoolArray, top_ids: IntArray, top_logprobs: FloatArray) -> None:
        """Take in the rows of one request in one step; arrays as in `specdec_core.draft.VerifiedRows`.

        All rows in order, then those of the text again: what was right wins. A candidate outside the vocabulary, or
        without a finite log-probability, ends its row; a row without candidates is passed over.
        """

    def grow(self, newest: int, most: int, least: float, out: IntArray, confidence: FloatArray, start: int) -> int:
        """Draft the likeliest tree behind an id, and return its number of nodes, at most `most`.

        A node's probability is the product of those on its path. The likeliest one comes next, of equals that of the
        parent which was made first; none is less likely than `least`. Ids go to out[0] [room] from `start` on, parents
        within the tree to out[1], probabilities to `confidence`.
        """

    def unfold(
        self, newest: int, most: int, template: IntArray, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft the first `most` nodes of a template, [2, nodes]: the parent of each node, -1 = the id, and its rank.

        A node whose candidate is not known is left out, with all behind it. Results as for `grow`.
        """

    def contents(self) -> Contents:
        """Return ids [m], candidates [m, n], -1 where there is none, and their log-probabilities, in order of ids."""

    def memory_bytes(self) -> int:
        """Return the bytes held."""


MakeTable = Callable[[int, int], Table]
