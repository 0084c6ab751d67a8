"""The op `draft_merge` in plain Python: its definition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdec_plugin_combine.estimate import DEPTHS, KEPT
from specdec_plugin_combine.merging import CLASSES, COUNTED, assumed

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_combine.merging import FloatArray


class _Node:
    def __init__(self, token: int, parent: int, depth: int) -> None:
        self.token, self.parent, self.depth = token, parent, depth
        self.keys: dict[int, int] = {}  # by part that drafted it, the first one first


class Merger:
    """Nodes in a list; see `specdec_plugin_combine.merging.Merger`."""

    def __init__(self, parts: int) -> None:
        """Begin with no drafts."""
        self._counts = [[list(assumed(key)) for key in range(COUNTED)] for _ in range(parts)]
        self._nodes: list[_Node] = []

    def clear(self) -> None:
        """Begin a step."""
        self._nodes = []

    def add(self, part: int, tokens: IntArray, parents: IntArray | None, estimates: FloatArray | None) -> None:
        """Join a draft."""
        known = {(node.parent, node.token): index for index, node in enumerate(self._nodes)}
        at: list[int] = []
        for i, token in enumerate(tokens.tolist()):
            before = i - 1 if parents is None else int(parents[i])
            parent = at[before] if before >= 0 else -1
            index = known.setdefault((parent, token), len(self._nodes))
            if index == len(self._nodes):
                self._nodes.append(_Node(token, parent, self._nodes[parent].depth + 1 if parent >= 0 else 0))
            at.append(index)
            key = min(self._nodes[index].depth, DEPTHS - 1)
            if estimates is not None:
                whole = float(estimates[before]) if before >= 0 else 1.0
                share = float(estimates[i]) / whole if whole > 0 else 0.0
                key = DEPTHS + min(int(share * CLASSES), CLASSES - 1)
            self._nodes[index].keys[part] = key

    def pick(self, most: int, out: IntArray, confidence: FloatArray, start: int) -> int:
        """Write the likeliest nodes."""
        chances: list[float] = []
        for node in self._nodes:
            wrong = math.prod(1.0 - self._rate(part, key) for part, key in node.keys.items())
            chances.append((1.0 - wrong) * (chances[node.parent] if node.parent >= 0 else 1.0))
        picked = sorted(range(len(chances)), key=lambda index: -chances[index])[:most]
        place = {-1: -1}
        for count, index in enumerate(picked):
            node = self._nodes[index]
            place[index] = count
            out[:, start + count] = node.token, place[node.parent], next(iter(node.keys))
            confidence[start + count] = chances[index]
        return len(picked)

    def compare(self, gained: IntArray) -> None:
        """Learn."""
        depths = {-1: 0}
        for index, node in enumerate(self._nodes):
            depth = depths.get(node.parent)
            if depth is None or depth >= len(gained):
                continue
            right = node.token == gained[depth]
            if right:
                depths[index] = depth + 1
            for part, key in node.keys.items():
                tried, before = self._counts[part][key]
                self._counts[part][key] = [KEPT * tried + 1, KEPT * before + right]
        self.clear()

    def _rate(self, part: int, key: int) -> float:
        tried, right = self._counts[part][key]
        return right / tried
