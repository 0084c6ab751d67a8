"""The tree of one step: paths that are merged where they begin alike, and answers that are found again by path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

Path = tuple[int, ...]


class Tree:
    """Nodes in the order in which paths were added, a parent before its children, siblings with different ids."""

    def __init__(self, most: int) -> None:
        """Make an empty tree for at most `most` nodes."""
        self._most: Final = most
        self._place: Final[dict[tuple[int, int], int]] = {}
        self.tokens: Final[list[int]] = []
        self.parents: Final[list[int]] = []

    def add(self, path: Path) -> None:
        """Add the nodes of a path, as far as there is room."""
        at = -1
        for token in path:
            place = self._place.get((at, token))
            if place is None:
                if len(self.tokens) == self._most:
                    return
                place = self._place[at, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(at)
            at = place

    def add_all(self, paths: Iterable[Path]) -> None:
        """Add paths in order."""
        for path in paths:
            self.add(path)


class Answers:
    """What the target answered at the rows of one request: by the path of ids behind the first row."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], best: Sequence[int]) -> None:
        """Take rows; `parents` are -1 for the first one, `best` the most likely next ids, -1 for none."""
        self._place = {(parent, token): row for row, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
        self._best = best

    def __call__(self, path: Path) -> int | None:
        """Return the most likely id behind a path; None if it has not been run, or has no distribution."""
        row = 0
        for token in path:
            found = self._place.get((row, token))
            if found is None:
                return None
            row = found
        best = self._best[row]
        return best if best >= 0 else None
