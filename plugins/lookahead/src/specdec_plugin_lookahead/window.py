"""The window of one request: guesses at later places that the target improves by one level a step; knows no pool.

Level 0 is the trunk, one id for each of the next places. Column i of the levels above it hangs from place i, so that
the rows form a tree: (level, column) stands behind (level - 1, column), and (0, 0) is the newest id (arXiv 2402.02057,
section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Path = tuple[int, ...]
Answer = Callable[[Path], int | None]


class Window:
    """W columns and N - 1 levels; the upper ones are filled in the first N - 2 steps."""

    def __init__(self, width: int, length: int, trunk: list[int]) -> None:
        """Begin with a trunk of width + length - 3 ids; `length` is that of an n-gram."""
        self._width: Final = width
        self._length: Final = length
        self.levels: list[list[int]] = [trunk]

    @property
    def is_filled(self) -> bool:
        """Whether all levels are there."""
        return len(self.levels) == self._length - 1

    def columns(self) -> list[Path]:
        """Return the ids behind the newest one on the way to the last level of each column, the first column first.

        While there is no level above the trunk, its whole path is the only one.
        """
        trunk, upper = self.levels[0], self.levels[1:]
        if not upper:
            return [tuple(trunk)]
        return [(*trunk[:i], *(level[i] for level in upper)) for i in range(len(upper[-1]))]

    def advance(self, newest: int, answer: Answer) -> list[tuple[int, Path]]:
        """Move on by one column; return the n-grams that were found, each as its first id and the rest.

        answer(path) is the target's most likely id behind `newest` and a path, None where it has not run that path. A
        place without an answer keeps the id that was guessed for it, and gives no n-gram.
        """
        trunk, upper = self.levels[0], self.levels[1:]
        if not upper:
            found = [self._or(answer(tuple(trunk[: i + 1])), trunk[i]) for i in range(len(trunk))]
            self.levels = [trunk[1:], found]
            return []
        answers = [answer(path) for path in self.columns()]
        found = [self._or(one, upper[-1][i]) for i, one in enumerate(answers)]
        if not self.is_filled:
            self.levels = [level[1:] for level in self.levels] + [found[1:]]
            return []
        firsts = [newest, *trunk]
        grams = [(firsts[i], (*(level[i] for level in upper), one)) for i, one in enumerate(answers) if one is not None]
        self.levels = [upper[0][1:], *upper[1:], found]
        return grams

    @staticmethod
    def _or(answer: int | None, guess: int) -> int:
        return guess if answer is None else answer
