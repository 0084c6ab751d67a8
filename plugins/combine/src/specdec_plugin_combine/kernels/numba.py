"""The compiled backend of `draft_merge`: the nodes of one request in flat arrays that are used again in each step."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import float32, float64, int32, int64, types, void

from specdec_nn.ops.cpu.jit import Jit
from specdec_plugin_combine.estimate import DEPTHS, KEPT
from specdec_plugin_combine.merging import CLASSES, COUNTED, ROOM, assumed

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_combine.merging import FloatArray

njit: Final = Jit(
    "specdec_plugin_combine.kernels", "specdec_plugin_combine.merging", "specdec_plugin_combine.estimate"
).njit

_IDS = types.Array(int32, 1, "C", readonly=True)
_ESTIMATES = types.Array(float32, 1, "C", readonly=True)
# Columns are nodes. Rows are the node's id, its parent, its depth, the first part that drafted it, and its place among
# the nodes that were picked, -1 for none; from KEYS on, for each part what its estimate is counted under, -1 where it
# did not draft the node.
TOKEN, PARENT, DEPTH, FIRST, PLACE, KEYS = range(6)
TRIED, RIGHT = range(2)
_NODES, _COUNTS = int32[:, ::1], float64[:, :, ::1]
_NO_IDS: Final = np.empty(0, np.int32)
_NO_ESTIMATES: Final = np.empty(0, np.float32)


@njit(int64(int64, int64, _IDS, _IDS, _ESTIMATES, _NODES), nogil=True)
def _add(count: Any, part: Any, tokens: Any, parents: Any, estimates: Any, nodes: Any) -> Any:
    """Join a draft to `count` nodes, and return how many there are; no parents: a chain, no estimates: none."""
    at = np.empty(len(tokens), np.int64)
    for i in range(len(tokens)):
        before = np.int64(parents[i]) if len(parents) else i - 1
        parent = at[before] if before >= 0 else np.int64(-1)
        index = parent + 1
        while index < count and not (nodes[PARENT, index] == parent and nodes[TOKEN, index] == tokens[i]):
            index += 1
        if index == count:
            nodes[TOKEN, index], nodes[PARENT, index], nodes[PLACE, index] = tokens[i], parent, -1
            nodes[DEPTH, index] = nodes[DEPTH, parent] + 1 if parent >= 0 else 0
            nodes[FIRST, index] = part
            nodes[KEYS:, index] = -1
            count += 1
        at[i] = index
        key = min(nodes[DEPTH, index], DEPTHS - 1)
        if len(estimates):
            whole = np.float64(estimates[before]) if before >= 0 else 1.0
            share = np.float64(estimates[i]) / whole if whole > 0 else 0.0
            key = DEPTHS + min(np.int64(share * CLASSES), CLASSES - 1)
        nodes[KEYS + part, index] = key
    return count


@njit(int64(int64, int64, _NODES, _COUNTS, _NODES, float32[::1], int64), nogil=True)
def _pick(count: Any, most: Any, nodes: Any, counts: Any, out: Any, confidence: Any, start: Any) -> Any:
    chances = np.empty(count)
    for index in range(count):
        wrong = 1.0
        for part in range(counts.shape[1]):
            key = nodes[KEYS + part, index]
            if key >= 0:
                wrong *= 1.0 - counts[RIGHT, part, key] / counts[TRIED, part, key]
        parent = nodes[PARENT, index]
        chances[index] = (1.0 - wrong) * (chances[parent] if parent >= 0 else 1.0)
    picked = min(most, count)
    for place in range(picked):  # no chance is above that of the parent, which comes first of equals
        best = -1
        for index in range(count):
            if nodes[PLACE, index] < 0 and (best < 0 or chances[index] > chances[best]):
                best = index
        parent = nodes[PARENT, best]
        nodes[PLACE, best] = place
        out[0, start + place], out[2, start + place] = nodes[TOKEN, best], nodes[FIRST, best]
        out[1, start + place] = nodes[PLACE, parent] if parent >= 0 else -1
        confidence[start + place] = chances[best]
    return picked


@njit(void(int64, _IDS, _NODES, _COUNTS), nogil=True)
def _compare(count: Any, gained: Any, nodes: Any, counts: Any) -> None:
    came = np.zeros(count, np.bool_)
    for index in range(count):
        parent, depth = nodes[PARENT, index], nodes[DEPTH, index]
        if depth < len(gained) and (parent < 0 or came[parent]):
            right = nodes[TOKEN, index] == gained[depth]
            came[index] = right
            for part in range(counts.shape[1]):
                key = nodes[KEYS + part, index]
                if key >= 0:
                    counts[TRIED, part, key] = KEPT * counts[TRIED, part, key] + 1
                    counts[RIGHT, part, key] = KEPT * counts[RIGHT, part, key] + right


class Merger:
    """Nodes in arrays; see `specdec_plugin_combine.merging.Merger`."""

    __slots__ = ("_count", "_counts", "_nodes")

    def __init__(self, parts: int) -> None:
        """Begin with no drafts."""
        self._counts: Final = np.empty((2, parts, COUNTED))
        self._counts[:] = np.array([assumed(key) for key in range(COUNTED)]).T[:, None]
        self._nodes = np.empty((KEYS + parts, ROOM), np.int32)
        self._count = 0

    def clear(self) -> None:
        """Begin a step."""
        self._count = 0

    def add(self, part: int, tokens: IntArray, parents: IntArray | None, estimates: FloatArray | None) -> None:
        """Join a draft."""
        missing = self._count + len(tokens) - self._nodes.shape[1]
        if missing > 0:
            self._nodes = np.concatenate((self._nodes, np.empty((len(self._nodes), missing + ROOM), np.int32)), axis=1)
        own = _NO_IDS if parents is None else parents
        shares = _NO_ESTIMATES if estimates is None else estimates
        self._count = _add(self._count, part, tokens, own, shares, self._nodes)

    def pick(self, most: int, out: IntArray, confidence: FloatArray, start: int) -> int:
        """Write the likeliest nodes."""
        count: int = _pick(self._count, most, self._nodes, self._counts, out, confidence, start)
        return count

    def compare(self, gained: IntArray) -> None:
        """Learn."""
        _compare(self._count, gained, self._nodes, self._counts)
        self._count = 0
