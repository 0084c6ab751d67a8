"""N-grams of one request by their first id, the latest to be seen last; knows no window."""

from __future__ import annotations

from typing import Final

Rest = tuple[int, ...]


class Pool:
    """At most `most` n-grams of each first id; seeing one again makes it the latest."""

    def __init__(self, length: int, most: int) -> None:
        """Make an empty pool of n-grams of `length` ids."""
        self._length: Final = length
        self._most: Final = most
        self._rests: Final[dict[int, dict[Rest, None]]] = {}
        self._tail: list[int] = []  # the last ids of the text, fewer than an n-gram has

    def add(self, first: int, rest: Rest) -> None:
        """Keep an n-gram; the oldest with the same first id leaves where there are too many."""
        if not self._most:
            return
        rests = self._rests.setdefault(first, {})
        rests.pop(rest, None)
        rests[rest] = None
        if len(rests) > self._most:
            del rests[next(iter(rests))]

    def read(self, ids: list[int]) -> None:
        """Keep every n-gram that the text has with its next `ids`."""
        text, n = [*self._tail, *ids], self._length
        for start in range(len(text) - n + 1):
            self.add(text[start], tuple(text[start + 1 : start + n]))
        self._tail = text[max(0, len(text) - n + 1) :]

    def rests(self, first: int) -> list[Rest]:
        """Return what followed an id, the latest first."""
        return list(reversed(self._rests.get(first, ())))

    def __len__(self) -> int:
        """Return the number of n-grams."""
        return sum(map(len, self._rests.values()))
