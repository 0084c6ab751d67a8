"""The compiled backend of `recycling_table`: rows of candidates in flat arrays, those of pairs before those of ids."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import boolean, float32, float64, int32, int64, types, void

from specdec_nn.ops.cpu.jit import Jit
from specdec_plugin_token_recycling.table import CLASSES, KEPT, PRIOR, SPREAD

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_token_recycling.table import Contents, FloatArray, Rows

njit: Final = Jit("specdec_plugin_token_recycling.kernels", "specdec_plugin_token_recycling.table").njit
ROOM: Final = 256  # rows of ids before the first growth

_IDS = types.Array(int32, 1, "C", readonly=True)
_FLAGS = types.Array(boolean, 1, "C", readonly=True)
_TOP = types.Array(int32, 2, "C", readonly=True)
_LOGS = types.Array(float32, 2, "C", readonly=True)
# index[0] counts the ids that have a row, index[1 + id] is 1 + the number of an id's row, 0 for none. keys[place] is
# 1 + the pair that is kept there, 0 for none. Rows of pairs come first: the id with number i has row len(keys) + i.
_INDEX, _KEYS, _ROWS, _SCORES = int32[::1], int64[::1], int32[:, ::1], float32[:, ::1]
_FACTORS, _SEEN = float64[:, ::1], float64[:, :, ::1]  # by kind (pairs, single ids) and class; expected, and right


@njit(nogil=True, inline="always")
def _after(index: Any, keys: Any, first: Any, token: Any) -> Any:
    """Return the row of what comes after two ids, -1 for none."""
    if len(keys) > 0 and first >= 0:
        place = (np.int64(first) * SPREAD + token) % len(keys)
        if keys[place] == np.int64(first) * len(index) + token + 1:
            return place
    return len(keys) + np.int64(index[1 + token]) - 1 if index[1 + token] else np.int64(-1)


@njit(nogil=True, inline="always")
def _class(logprob: Any) -> Any:
    return min(np.int64(np.exp(np.float64(logprob)) * CLASSES), CLASSES - 1)


@njit(nogil=True, inline="always")
def _worth(factors: Any, keys: Any, scores: Any, row: Any, rank: Any) -> Any:
    """Return what the log-probability of a candidate is worth, -inf where there is none."""
    score = np.float64(scores[row, rank])
    if score == -np.inf:
        return score
    return min(0.0, score + factors[0 if row < len(keys) else 1, _class(score)])


@njit(nogil=True)
def _write(row: Any, rows: Any, scores: Any, top: Any, logprobs: Any, vocabulary: Any) -> None:
    there = True
    for j in range(rows.shape[1]):
        there = there and j < len(top) and 0 <= top[j] < vocabulary and np.isfinite(logprobs[j])
        rows[row, j] = top[j] if there else -1
        scores[row, j] = logprobs[j] if there else -np.inf


@njit(nogil=True)
def _keep(index: Any, keys: Any, rows: Any, scores: Any, first: Any, token: Any, top: Any, logprobs: Any) -> None:
    """Write the row of a pair, or with `first` -1 that of an id."""
    if first < 0:
        if index[1 + token] == 0:
            index[0] += 1
            index[1 + token] = index[0]
        row = len(keys) + np.int64(index[1 + token]) - 1
    else:
        row = (np.int64(first) * SPREAD + token) % len(keys)
        keys[row] = np.int64(first) * len(index) + token + 1
    _write(row, rows, scores, top, logprobs, len(index) - 1)


@njit(void(_INDEX, _KEYS, _ROWS, _SCORES, int64, _IDS, _IDS, _FLAGS, _TOP, _LOGS), nogil=True)
def _learn(
    index: Any, keys: Any, rows: Any, scores: Any, before: Any, tokens: Any, parents: Any, accepted: Any, top: Any,
    logprobs: Any
) -> None:  # fmt: skip
    vocabulary = len(index) - 1
    if top.shape[1] == 0:
        return
    for again in range(2):
        for i in range(len(tokens)):
            token = tokens[i]
            if (again == 1 and not accepted[i]) or token < 0 or token >= vocabulary:
                continue
            if not (0 <= top[i, 0] < vocabulary and np.isfinite(logprobs[i, 0])):
                continue
            _keep(index, keys, rows, scores, -1, token, top[i], logprobs[i])
            first = np.int64(before) if parents[i] < 0 else np.int64(tokens[parents[i]])
            if len(keys) > 0 and 0 <= first < vocabulary:
                _keep(index, keys, rows, scores, first, token, top[i], logprobs[i])


@njit(void(_INDEX, _KEYS, _ROWS, _SCORES, _FACTORS, _SEEN, int64, _IDS, _IDS, _FLAGS, int64), nogil=True)
def _compare(
    index: Any, keys: Any, rows: Any, scores: Any, factors: Any, seen: Any, before: Any, tokens: Any, parents: Any,
    accepted: Any, newest: Any
) -> None:  # fmt: skip
    vocabulary = len(index) - 1
    for i in range(len(tokens)):
        if not accepted[i] or tokens[i] < 0 or tokens[i] >= vocabulary:
            continue
        following = newest
        for later in range(i + 1, len(tokens)):
            if accepted[later] and parents[later] == i:
                following = np.int64(tokens[later])
        first = np.int64(before) if parents[i] < 0 else np.int64(tokens[parents[i]])
        row = _after(index, keys, first, tokens[i])
        if row < 0:
            continue
        kind = 0 if row < len(keys) else 1
        for rank in range(rows.shape[1]):
            if rows[row, rank] < 0:
                break
            own = _class(scores[row, rank])
            seen[kind, 0, own] = KEPT * seen[kind, 0, own] + np.exp(np.float64(scores[row, rank]))
            seen[kind, 1, own] = KEPT * seen[kind, 1, own] + (rows[row, rank] == following)
            factors[kind, own] = np.log((seen[kind, 1, own] + PRIOR) / (seen[kind, 0, own] + PRIOR))


@njit(void(_INDEX, _KEYS, _ROWS, _SCORES, _TOP, _TOP, _LOGS), nogil=True)
def _put(index: Any, keys: Any, rows: Any, scores: Any, given: Any, top: Any, logprobs: Any) -> None:
    for i in range(len(given)):
        if given[i, 0] < 0 or len(keys) > 0:
            _keep(index, keys, rows, scores, given[i, 0], given[i, 1], top[i], logprobs[i])


@njit(nogil=True)
def _open(
    index: Any, keys: Any, rows: Any, scores: Any, factors: Any, first: Any, token: Any, score: Any, ids: Any,
    worth: Any
) -> None:  # fmt: skip
    """Write the candidates behind two ids, the most worth first, with `score` added to what they are worth."""
    row, found = _after(index, keys, first, token), 0
    worth[:] = -np.inf
    if row < 0:
        return
    for rank in range(rows.shape[1]):
        own = score + _worth(factors, keys, scores, row, rank)
        if own == -np.inf:
            return
        at = found
        while at > 0 and worth[at - 1] < own:
            worth[at], ids[at] = worth[at - 1], ids[at - 1]
            at -= 1
        worth[at], ids[at] = own, rows[row, rank]
        found += 1


@njit(
    int64(_INDEX, _KEYS, _ROWS, _SCORES, _FACTORS, int64, int64, int64, float64, _ROWS, float32[::1], int64),
    nogil=True,
)
def _grow(
    index: Any, keys: Any, rows: Any, scores: Any, factors: Any, before: Any, newest: Any, most: Any, least: Any,
    out: Any, confidence: Any, start: Any
) -> Any:  # fmt: skip
    n = rows.shape[1]
    ids, worth = np.empty((most + 1, n), np.int32), np.empty((most + 1, n))  # children of the newest id and the nodes
    used = np.zeros(most + 1, np.int64)
    _open(index, keys, rows, scores, factors, before, newest, 0.0, ids[0], worth[0])
    count = 0
    while count < most:
        whose, best = -1, -np.inf
        for place in range(count + 1):
            if used[place] < n and worth[place, used[place]] > best:
                whose, best = place, worth[place, used[place]]
        if whose < 0 or np.exp(best) < least:
            break
        token = np.int64(ids[whose, used[whose]])
        first = newest if whose == 0 else np.int64(out[0, start + whose - 1])
        out[0, start + count], out[1, start + count] = token, whose - 1
        confidence[start + count] = np.exp(best)
        used[whose] += 1
        count += 1
        _open(index, keys, rows, scores, factors, first, token, best, ids[count], worth[count])
    return count


@njit(int64(_INDEX, _KEYS, _ROWS, _SCORES, _FACTORS, int64, int64, int64, _TOP, _ROWS, float32[::1], int64), nogil=True)
def _unfold(
    index: Any, keys: Any, rows: Any, scores: Any, factors: Any, before: Any, newest: Any, most: Any, template: Any,
    out: Any, confidence: Any, start: Any
) -> Any:  # fmt: skip
    nodes, n = template.shape[1], rows.shape[1]
    place, score = np.full(nodes + 1, -2, np.int32), np.zeros(nodes + 1)  # -2: the node was left out
    row = np.empty(nodes + 1, np.int64)
    place[0], row[0] = -1, _after(index, keys, before, newest)
    count = 0
    for node in range(nodes):
        if count == most:
            break
        parent, rank = 1 + template[0, node], template[1, node]
        if place[parent] == -2 or rank >= n or row[parent] < 0 or rows[row[parent], rank] < 0:
            continue
        token = np.int64(rows[row[parent], rank])
        first = newest if place[parent] < 0 else np.int64(out[0, start + place[parent]])
        score[1 + node] = score[parent] + _worth(factors, keys, scores, row[parent], rank)
        row[1 + node] = _after(index, keys, first, token)
        out[0, start + count], out[1, start + count] = token, place[parent]
        confidence[start + count] = np.exp(score[1 + node])
        place[1 + node] = count
        count += 1
    return count


class Table:
    """Candidates in arrays; see `specdec_plugin_token_recycling.table.Table`."""

    def __init__(self, vocabulary: int, n: int, pairs: int) -> None:
        """Make an empty table."""
        self._vocabulary: Final = vocabulary
        self._index: Final = np.zeros(1 + vocabulary, np.int32)
        self._keys: Final = np.zeros(pairs, np.int64)
        self._rows: IntArray = np.empty((pairs + ROOM, n), np.int32)
        self._scores: FloatArray = np.empty((pairs + ROOM, n), np.float32)
        self._factors: Final = np.zeros((2, CLASSES))
        self._seen: Final = np.zeros((2, 2, CLASSES))

    def __len__(self) -> int:
        """Return the number of ids that have candidates."""
        return int(self._index[0])

    def learn(self, before: int, rows: Rows) -> None:
        """Take in rows."""
        self._make_room(len(rows[0]))
        _learn(self._index, self._keys, self._rows, self._scores, before, *rows)

    def compare(self, before: int, rows: Rows, newest: int) -> None:
        """Learn what probabilities are worth."""
        arrays = self._index, self._keys, self._rows, self._scores, self._factors, self._seen
        _compare(*arrays, before, rows[0], rows[1], rows[2], newest)

    def put(self, contents: Contents) -> None:
        """Take in rows of a file."""
        self._make_room(len(contents[0]))
        _put(self._index, self._keys, self._rows, self._scores, *contents)

    def _make_room(self, more: int) -> None:
        needed = min(len(self) + more, self._vocabulary)
        if len(self._keys) + needed <= len(self._rows):
            return
        size = len(self._keys) + min(2 * needed, self._vocabulary)
        for name in ("_rows", "_scores"):
            old = getattr(self, name)
            new = np.empty((size, old.shape[1]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def grow(
        self, last: tuple[int, int], most: int, least: float, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft the likeliest tree."""
        if not 0 <= last[1] < self._vocabulary:
            return 0
        count: int = _grow(
            *(self._index, self._keys, self._rows, self._scores, self._factors),
            *last,
            most,
            least,
            out,
            confidence,
            start,
        )
        return count

    def unfold(
        self, last: tuple[int, int], most: int, template: IntArray, out: IntArray, confidence: FloatArray, start: int
    ) -> int:
        """Draft along a template."""
        if not 0 <= last[1] < self._vocabulary:
            return 0
        arrays = self._index, self._keys, self._rows, self._scores, self._factors
        count: int = _unfold(*arrays, *last, most, template, out, confidence, start)
        return count

    def contents(self) -> Contents:
        """Return all rows."""
        ids = np.flatnonzero(self._index[1:])
        places = np.flatnonzero(self._keys)
        pairs = np.stack(np.divmod(self._keys[places] - 1, len(self._index)), axis=1)
        pairs = pairs[order := np.lexsort((pairs[:, 1], pairs[:, 0]))]
        singles = np.stack((np.full_like(ids, -1), ids), axis=1)
        rows = np.concatenate((len(self._keys) + self._index[1 + ids].astype(np.int64) - 1, places[order]))
        return np.concatenate((singles, pairs)).astype(np.int32), self._rows[rows], self._scores[rows]

    def memory_bytes(self) -> int:
        """Return the bytes of all arrays; places of pairs that were never used take no memory on most systems."""
        return self._index.nbytes + self._keys.nbytes + self._rows.nbytes + self._scores.nbytes
