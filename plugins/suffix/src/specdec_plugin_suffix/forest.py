"""What the cache asks of a backend of the op `suffix_forest`, and how the installed one is found; knows no backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from specdec_core.errors import SpecdecError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels

if TYPE_CHECKING:
    from specdec_core.draft import IntArray

OP: Final = "suffix_forest"
DISTRIBUTION: Final = "specdec-plugin-suffix"
ANY_ID: Final = 2**31  # a vocabulary size that forbids no id
NO_LIMIT: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How drafts of a request are made (arXiv 2411.04975, section 3).

    max_factor, offset  a match of m ids may be continued by at most floor(m * max_factor + offset) ids
    min_probability     no draft is less likely than this
    tree                drafts are trees, not paths
    match_whole         a match may be the whole text so far
    vocabulary          ids from this one on are never drafted
    """

    max_factor: float = 1.0
    offset: float = 0.0
    min_probability: float = 0.1
    tree: bool = False
    match_whole: bool = False
    vocabulary: int = ANY_ID

    def __post_init__(self) -> None:
        """Refuse what cannot be, with SpecdecError."""
        for name, good, expected in (
            ("max_factor", 0 <= self.max_factor < inf, "a finite number of at least 0"),
            ("offset", -inf < self.offset < inf, "a finite number"),
            ("min_probability", 0 <= self.min_probability <= 1, "a probability"),
            ("vocabulary", 0 <= self.vocabulary <= ANY_ID, f"a size of at most {ANY_ID}"),
        ):
            if not good:
                message = f"suffix: {name} is {getattr(self, name)}; expected {expected}"
                raise SpecdecError(message)


class Request(Protocol):
    """One request: a trie of its own text, and, once attached, a trie of a shared forest and its sequence in it."""

    @property
    def score(self) -> float:
        """The sum of the probabilities of the last draft."""

    @property
    def matched(self) -> int:
        """How many last ids were found for the last draft."""

    def extend(self, tokens: IntArray, first: int, first_shared: int) -> None:
        """Append tokens[first:] to the own text and tokens[first_shared:] to the shared one; [n] int32."""

    def draft(self, most: int, out: IntArray, start: int, stride: int) -> int:
        """Draft at most `most` ids; return how many.

        They go to `out`, int32, from `start` on, their parents `stride` numbers later, and their probabilities, as the
        bits of float32, 2 * `stride` later; so start + most <= stride, and `out` has 3 * stride numbers.
        """

    def step(
        self, tokens: IntArray, first: int, first_shared: int, most: int, out: IntArray, start: int, stride: int
    ) -> int:
        """Extend and draft in one call."""

    def attach(self, root: int, seq: int) -> None:
        """Look into a shared trie too, and append to a sequence in it (0: to none)."""

    def detach(self) -> None:
        """Forget the shared sequence, which has been removed; the trie that it was in is still looked into."""

    def release(self) -> None:
        """Give the own text's memory back; the request must not be used again."""

    def memory_bytes(self) -> int:
        """Return the bytes held for the request's own text."""


class Forest(Protocol):
    """Tries of one depth over one store of text; sequences and roots of tries are named by numbers above 0."""

    def __init__(self, depth: int, tokens: int = 0) -> None:
        """Make an empty forest with room for some ids; it grows when it has to."""

    @property
    def tokens(self) -> int:
        """Ids in the tries."""

    @property
    def nodes(self) -> int:
        """Nodes of the tries."""

    @property
    def used_bytes(self) -> int:
        """Bytes of what is in use, without room for more."""

    def memory_bytes(self) -> int:
        """Return the bytes of all arrays, room included; room that was never used takes no memory on most systems."""

    def plant(self) -> int:
        """Make an empty trie; return its root."""

    def fell(self, root: int) -> None:
        """Drop an empty trie."""

    def begin(self, root: int) -> int:
        """Begin an empty sequence in a trie; return its number."""

    def append(self, seq: int, tokens: IntArray) -> None:
        """Append ids [n] int32 to a sequence."""

    def remove(self, seq: int, count: int) -> int:
        """Remove the first ids of a sequence, at most `count`; return how many stay."""

    def end(self, seq: int) -> None:
        """Give the number of an empty sequence back."""

    def span(self, seq: int) -> tuple[int, int]:
        """Return how many ids of a sequence have been removed, and how many were ever appended."""

    def text(self, seq: int) -> IntArray:
        """Return a copy of what is left of a sequence, [n] int32."""

    def request(self, prompt: IntArray, rules: Rules) -> Request:
        """Return a request with a prompt, attached to nothing; safe while other threads use the forest."""

    def walk(self, root: int) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
        """Yield each string of a trie, its count, and the ids that follow it, in order; slow."""


MakeForest = Callable[[int, int], Forest]


def installed_forest() -> MakeForest:
    """Return the best installed backend; `SPECDEC_KERNELS` chooses, as for every op."""
    return Kernels(Catalog.discover(), [DISTRIBUTION]).get(OP)
