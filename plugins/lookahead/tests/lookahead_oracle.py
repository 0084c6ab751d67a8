"""Lookahead decoding in plain Python, from arXiv 2402.02057 and docs/lookahead.md alone: levels, rows, pool.

It knows levels as lists and rows as whole paths of ids, and finds answers by path, not by number.
"""

from __future__ import annotations


class Oracle:
    """One request: window W, n-grams of N ids, at most G of a first id."""

    def __init__(self, window, length, guesses, first_level):
        self.w, self.n, self.g = window, length, guesses
        self.levels = [list(first_level)]
        self.pool = {}

    @property
    def is_filled(self):
        return len(self.levels) == self.n - 1

    def guesses(self, newest):
        """The last G n-grams that begin with the newest id, the oldest first."""
        return list(self.pool.get(newest, []))[-self.g :] if self.g else []

    def window_paths(self):
        """For each column the ids of its trunk, and then of its levels: one path a column and level."""
        trunk, upper = self.levels[0], self.levels[1:]
        paths = [tuple(trunk[: i + 1]) for i in range(len(trunk))]
        for i in range(len(trunk) + 1):
            down = [level[i] for level in upper if i < len(level)]
            paths += [(*trunk[:i], *down[: j + 1]) for j in range(len(down))]
        return paths

    def tree(self, newest):
        """All paths that ride in a step, beginnings included."""
        paths = set(self.window_paths())
        for guess in self.guesses(newest):
            paths |= {guess[: j + 1] for j in range(len(guess))}
        return paths

    def add(self, key, rest):
        if not self.g:
            return
        known = self.pool.setdefault(key, [])
        if rest in known:
            known.remove(rest)
        elif len(known) == self.g:
            known.pop(0)
        known.append(rest)

    def advance(self, newest, answer):
        """Move on by one column; answer(path) is the target's most likely id behind the newest one and a path."""
        trunk, upper = self.levels[0], self.levels[1:]
        if not self.is_filled:
            if not upper:
                found = [answer(tuple(trunk[: i + 1])) for i in range(len(trunk))]
                self.levels = [trunk[1:], found]
                return
            top = upper[-1]
            found = [answer((*trunk[:i], *(level[i] for level in upper))) for i in range(len(top))]
            self.levels = [level[1:] for level in self.levels] + [found[1:]]
            return
        found = [answer((*trunk[:i], *(level[i] for level in upper))) for i in range(self.w)]
        for i in range(self.w):
            key = newest if i == 0 else trunk[i - 1]
            self.add(key, (*(level[i] for level in upper), found[i]))
        self.levels = [upper[0][1:], *upper[1:], found]
