"""The compiled backend of `recycling_table`: rows in flat arrays that grow, found by an index over the vocabulary."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import boolean, float32, float64, int32, int64, types, void

from specdec_nn.ops.cpu.jit import Jit

if TYPE_CHECKING:
    from specdec_core.draft import BoolArray, IntArray
    from specdec_plugin_token_recycling.table import Contents, FloatArray

njit: Final = Jit("specdec_plugin_token_recycling.kernels").njit
ROOM: Final = 256  # rows before the first growth

_IDS = types.Array(int32, 1, "C", readonly=True)
_FLAGS = types.Array(boolean, 1, "C", readonly=True)
_TOP = types.Array(int32, 2, "C", readonly=True)
_LOGS = types.Array(float32, 2, "C", readonly=True)
_INDEX, _ROWS, _SCORES = int32[::1], int32[:, ::1], float32[:, ::1]


@njit(void(_INDEX, _ROWS, _SCORES, _IDS, _FLAGS, _TOP, _LOGS, int64), nogil=True)
def _learn(
    index: Any, rows: Any, scores: Any, tokens: Any, accepted: Any, top_ids: Any, top_logprobs: Any, n: Any
) -> None:
    """Write rows; index[0] is how many there are, index[1 + id] the number of an id's row, 0 for none."""
    vocabulary, width = len(index) - 1, min(n, top_ids.shape[1])
    for again in range(2):
        for i in range(len(tokens)):
            token = tokens[i]
            if (again == 1 and not accepted[i]) or token < 0 or token >= vocabulary or width == 0:
                continue
            if not (0 <= top_ids[i, 0] < vocabulary and np.isfinite(top_logprobs[i, 0])):
                continue
            row = index[1 + token]
            if row == 0:
                index[0] += 1
                row = index[1 + token] = index[0]
            there = True
            for j in range(n):
                there = there and j < width and 0 <= top_ids[i, j] < vocabulary and np.isfinite(top_logprobs[i, j])
                rows[row, j] = top_ids[i, j] if there else -1
                scores[row, j] = top_logprobs[i, j] if there else -np.inf


@njit(int64(_INDEX, _ROWS, _SCORES, int64, int64, float64, _ROWS, float32[::1], int64), nogil=True)
def _grow(
    index: Any, rows: Any, scores: Any, newest: Any, most: Any, least: Any, out: Any, confidence: Any, start: Any
) -> Any:
    n = rows.shape[1]
    row, used, score = np.empty(most + 1, np.int32), np.zeros(most + 1, np.int32), np.empty(most + 1)
    bound = np.empty(most + 1)  # of each node's next child, -inf where there is none
    row[0], score[0] = index[1 + newest], 0.0
    bound[0] = scores[row[0], 0] if row[0] else -np.inf
    count = 0
    while count < most:
        whose = 0
        for place in range(1, count + 1):
            if bound[place] > bound[whose]:
                whose = place
        best = bound[whose]
        if best == -np.inf or np.exp(best) < least:
            break
        token = rows[row[whose], used[whose]]
        out[0, start + count], out[1, start + count] = token, whose - 1
        confidence[start + count] = np.exp(best)
        used[whose] += 1
        bound[whose] = score[whose] + scores[row[whose], used[whose]] if used[whose] < n else -np.inf
        count += 1
        row[count], score[count] = index[1 + token], best
        bound[count] = best + scores[row[count], 0] if row[count] else -np.inf
    return count


@njit(int64(_INDEX, _ROWS, _SCORES, int64, int64, _TOP, _ROWS, float32[::1], int64), nogil=True)
def _unfold(
    index: Any, rows: Any, scores: Any, newest: Any, most: Any, template: Any, out: Any, confidence: Any, start: Any
) -> Any:
    nodes, n = template.shape[1], rows.shape[1]
    place, score = np.full(nodes + 1, -2, np.int32), np.zeros(nodes + 1)  # -2: the node was left out
    place[0] = -1
    count = 0
    for node in range(nodes):
        if count == most:
            break
        parent, rank = 1 + template[0, node], template[1, node]
        if place[parent] == -2 or rank >= n:
            continue
        row = index[1 + (newest if place[parent] < 0 else out[0, start + place[parent]])]
        if row == 0 or rows[row, rank] < 0:
            continue
        score[1 + node] = score[parent] + scores[row, rank]
        out[0, start + count], out[1, start + count] = rows[row, rank], place[parent]
        confidence[start + count] = np.exp(score[1 + node])
        place[1 + node] = count
        count += 1
    return count


class Table:
    """Candidates in arrays; see `specdec_plugin_token_recycling.table.Table`."""

    def __init__(self, vocabulary: int, n: int) -> None:
        """Make an empty table; row 0 stays unused."""
        self._vocabulary: Final = vocabulary
        self._n: Final = n
        self._index: Final = np.zeros(1 + vocabulary, np.int32)
        self._rows: IntArray = np.empty((ROOM, n), np.int32)
        self._scores: FloatArray = np.empty((ROOM, n), np.float32)

    def __len__(self) -> int:
        """Return the number of ids that have candidates."""
        return int(self._index[0])

    def learn(self, tokens: IntArray, accepted: BoolArray, top_ids: IntArray, top_logprobs: FloatArray) -> None:
        """Take in rows."""
        needed = 1 + min(int(self._index[0]) + len(tokens), self._vocabulary)
        if needed > len(self._rows):
            self._make_room(min(2 * needed, 1 + self._vocabulary))
        _learn(self._index, self._rows, self._scores, tokens, accepted, top_ids, top_logprobs, self._n)

    def _make_room(self, size: int) -> None:
        for name in ("_rows", "_scores"):
            old = getattr(self, name)
            new = np.empty((size, self._n), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def grow(self, newest: int, most: int, least: float, out: IntArray, confidence: FloatArray, start: int) -> int:
        """Draft the likeliest tree."""
        if not 0 <= newest < self._vocabulary:
            return 0
        count: int = _grow(self._index, self._rows, self._scores, newest, most, least, out, confidence, start)
        return count

    def unfold(
        self, newest: int, most: int, template: IntArray, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft along a template."""
        if not 0 <= newest < self._vocabulary:
            return 0
        count: int = _unfold(self._index, self._rows, self._scores, newest, most, template, out, confidence, start)
        return count

    def contents(self) -> Contents:
        """Return all rows."""
        ids = np.flatnonzero(self._index[1:]).astype(np.int32)
        places = self._index[1 + ids]
        return ids, self._rows[places], self._scores[places]

    def memory_bytes(self) -> int:
        """Return the bytes of all arrays."""
        return self._index.nbytes + self._rows.nbytes + self._scores.nbytes
