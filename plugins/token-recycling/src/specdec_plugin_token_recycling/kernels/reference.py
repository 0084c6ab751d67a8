"""The op `recycling_table` in plain Python: its definition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugin_token_recycling.table import CLASSES, KEPT, PRIOR, place_of

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_token_recycling.table import Contents, FloatArray, Rows

Row = list[tuple[int, float]]  # candidates, the likeliest first, with their log-probabilities


class Table:
    """Candidates in dictionaries; see `specdec_plugin_token_recycling.table.Table`."""

    def __init__(self, vocabulary: int, n: int, pairs: int) -> None:
        """Make an empty table."""
        self._vocabulary, self._n, self._pairs = vocabulary, n, pairs
        self._rows: dict[int, Row] = {}
        self._kept: dict[int, tuple[int, int, Row]] = {}  # by the place of a pair
        self._seen = [[(0.0, 0.0)] * CLASSES for _ in range(2)]  # of pairs, of single ids: expected, and right

    def __len__(self) -> int:
        """Return the number of ids that have candidates."""
        return len(self._rows)

    def learn(self, before: int, rows: Rows) -> None:
        """Take in rows."""
        tokens, parents, accepted, top_ids, top_logprobs = rows
        for i in [*range(len(tokens)), *np.flatnonzero(accepted).tolist()]:
            parent = int(parents[i])
            row = self._read(top_ids[i].tolist(), top_logprobs[i].tolist())
            token, first = int(tokens[i]), before if parent < 0 else int(tokens[parent])
            if row and 0 <= token < self._vocabulary:
                self._rows[token] = row
                if self._pairs and 0 <= first < self._vocabulary:
                    self._kept[place_of(first, token, self._pairs)] = first, token, row

    def compare(self, before: int, rows: Rows, newest: int) -> None:
        """Learn what probabilities are worth."""
        tokens, parents, accepted = (part.tolist() for part in rows[:3])
        text = [i for i in range(len(tokens)) if accepted[i]]
        following = {parents[i]: tokens[i] for i in text}
        for i in text:
            first = before if parents[i] < 0 else tokens[parents[i]]
            kind, row = self._find(first, tokens[i])
            for token, logprob in row:
                own = _class(logprob)
                expected, right = self._seen[kind][own]
                hit = token == following.get(i, newest)
                self._seen[kind][own] = KEPT * expected + math.exp(logprob), KEPT * right + hit

    def put(self, contents: Contents) -> None:
        """Take in rows of a file."""
        for (first, token), top, logprobs in zip(*(part.tolist() for part in contents), strict=True):
            row = self._read(top, logprobs)
            if first < 0:
                self._rows[token] = row
            elif self._pairs:
                self._kept[place_of(first, token, self._pairs)] = first, token, row

    def _read(self, ids: list[int], logprobs: list[float]) -> Row:
        row: Row = []
        for token, logprob in zip(ids[: self._n], logprobs, strict=False):
            if not 0 <= token < self._vocabulary or not math.isfinite(logprob):
                break
            row.append((token, logprob))
        return row

    def _after(self, first: int, token: int) -> Row:
        """Return the candidates behind two ids, with what their log-probabilities are worth."""
        kind, row = self._find(first, token)
        return [(child, self._worth(kind, logprob)) for child, logprob in row]

    def _worth(self, kind: int, logprob: float) -> float:
        expected, right = self._seen[kind][_class(logprob)]
        return min(0.0, logprob + math.log((right + PRIOR) / (expected + PRIOR)))

    def _find(self, first: int, token: int) -> tuple[int, Row]:
        """Return the candidates behind two ids, and whether they are of the second one alone."""
        if self._pairs and first >= 0:
            kept = self._kept.get(place_of(first, token, self._pairs))
            if kept is not None and kept[:2] == (first, token):
                return 0, kept[2]
        return 1, self._rows.get(token, [])

    def grow(
        self, last: tuple[int, int], most: int, least: float, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft the likeliest tree."""
        # The newest id and the nodes: id, score, candidates, the most worth first.
        opened = [(last[1], 0.0, _sorted(self._after(*last)))]
        used = [0]
        count = 0
        while count < most:
            best, whose = -math.inf, -1
            for place, (_, score, row) in enumerate(opened):
                if used[place] < len(row) and score + row[used[place]][1] > best:
                    best, whose = score + row[used[place]][1], place
            if whose < 0 or math.exp(best) < least:
                break
            token = opened[whose][2][used[whose]][0]
            used[whose] += 1
            out[0, start + count], out[1, start + count] = token, whose - 1
            confidence[start + count] = math.exp(best)
            opened.append((token, best, _sorted(self._after(opened[whose][0], token))))
            used.append(0)
            count += 1
        return count

    def unfold(
        self, last: tuple[int, int], most: int, template: IntArray, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft along a template."""
        # The newest id and the nodes that were not left out: id, place, score, candidates.
        made = {-1: (last[1], -1, 0.0, self._after(*last))}
        count = 0
        for node, (parent, rank) in enumerate(template.T.tolist()):
            if count == most:
                break
            if parent not in made or rank >= len(made[parent][3]):
                continue
            token, place, score, row = made[parent]
            child, logprob = row[rank]
            made[node] = child, count, score + logprob, self._after(token, child)
            out[0, start + count], out[1, start + count] = child, place
            confidence[start + count] = math.exp(score + logprob)
            count += 1
        return count

    def contents(self) -> Contents:
        """Return all rows."""
        found = {(-1, token): row for token, row in self._rows.items()}
        found.update(((first, token), row) for first, token, row in self._kept.values())
        keys = np.array(sorted(found), np.int32).reshape(-1, 2)
        top = np.full((len(keys), self._n), -1, np.int32)
        logprobs = np.full((len(keys), self._n), -np.inf, np.float32)
        for place, key in enumerate(sorted(found)):
            for rank, (child, logprob) in enumerate(found[key]):
                top[place, rank], logprobs[place, rank] = child, logprob
        return keys, top, logprobs

    def memory_bytes(self) -> int:
        """Return about what the rows take."""
        return 100 * (len(self._rows) + len(self._kept)) * self._n


def _class(logprob: float) -> int:
    return min(int(math.exp(logprob) * CLASSES), CLASSES - 1)


def _sorted(row: Row) -> Row:
    return sorted(row, key=lambda candidate: -candidate[1])
