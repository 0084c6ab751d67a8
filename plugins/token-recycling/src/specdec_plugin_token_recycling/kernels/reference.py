"""The op `recycling_table` in plain Python: its definition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from specdec_core.draft import BoolArray, IntArray
    from specdec_plugin_token_recycling.table import Contents, FloatArray

Row = list[tuple[int, float]]  # candidates, the likeliest first, with their log-probabilities


class Table:
    """Candidates in a dictionary; see `specdec_plugin_token_recycling.table.Table`."""

    def __init__(self, vocabulary: int, n: int) -> None:
        """Make an empty table."""
        self._vocabulary, self._n = vocabulary, n
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        """Return the number of ids that have candidates."""
        return len(self._rows)

    def learn(self, tokens: IntArray, accepted: BoolArray, top_ids: IntArray, top_logprobs: FloatArray) -> None:
        """Take in rows."""
        for i in [*range(len(tokens)), *np.flatnonzero(accepted).tolist()]:
            token = int(tokens[i])
            row = self._read(top_ids[i].tolist(), top_logprobs[i].tolist())
            if row and 0 <= token < self._vocabulary:
                self._rows[token] = row

    def _read(self, ids: list[int], logprobs: list[float]) -> Row:
        row: Row = []
        for token, logprob in zip(ids[: self._n], logprobs, strict=False):
            if not 0 <= token < self._vocabulary or not math.isfinite(logprob):
                break
            row.append((token, logprob))
        return row

    def grow(self, newest: int, most: int, least: float, out: IntArray, confidence: FloatArray, start: int) -> int:
        """Draft the likeliest tree."""
        opened: list[list[float]] = []  # of the id and of each node: its score, and how many of its children are made
        tokens, count = [newest], 0
        opened.append([0.0, 0])
        while count < most:
            best, whose = -math.inf, -1
            for place, (score, used) in enumerate(opened):
                row = self._rows.get(tokens[place], [])
                if used < len(row) and score + row[int(used)][1] > best:
                    best, whose = score + row[int(used)][1], place
            if whose < 0 or math.exp(best) < least:
                break
            token = self._rows[tokens[whose]][int(opened[whose][1])][0]
            opened[whose][1] += 1
            out[0, start + count], out[1, start + count] = token, whose - 1
            confidence[start + count] = math.exp(best)
            tokens.append(token)
            opened.append([best, 0])
            count += 1
        return count

    def unfold(
        self, newest: int, most: int, template: IntArray, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft along a template."""
        made: dict[int, tuple[int, int, float]] = {-1: (newest, -1, 0.0)}  # its id, its place and its score
        count = 0
        for node, (parent, rank) in enumerate(template.T.tolist()):
            if count == most:
                break
            if parent not in made:
                continue
            token, place, score = made[parent]
            row = self._rows.get(token, [])
            if rank >= len(row):
                continue
            child, logprob = row[rank]
            made[node] = child, count, score + logprob
            out[0, start + count], out[1, start + count] = child, place
            confidence[start + count] = math.exp(score + logprob)
            count += 1
        return count

    def contents(self) -> Contents:
        """Return all rows."""
        ids = np.array(sorted(self._rows), np.int32)
        top = np.full((len(ids), self._n), -1, np.int32)
        logprobs = np.full((len(ids), self._n), -np.inf, np.float32)
        for place, token in enumerate(ids.tolist()):
            for rank, (child, logprob) in enumerate(self._rows[token]):
                top[place, rank], logprobs[place, rank] = child, logprob
        return ids, top, logprobs

    def memory_bytes(self) -> int:
        """Return about what the rows take."""
        return 100 * sum(len(row) for row in self._rows.values())
