"""One row's draft out of the drafts of several parts; pure functions over small lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from specdec_plugin_combine.estimate import Estimate


@dataclass(frozen=True, slots=True)
class PartRow:
    """What one part drafted for one request; the fields are those of `specdec_core.draft.Draft`, for one row.

    origin  the part's index, one a node
    q_row   the row of q that a node was drawn from, in the numbering of all parts; -1 = a point mass
    confidence  the part's own estimate for each node that it and all before it are accepted, None if it gives none
    """

    tokens: list[int]
    parents: list[int] | None
    origin: list[int]
    q_row: list[int] | None = None
    confidence: list[float] | None = None

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.tokens)


EMPTY = PartRow([], None, [])


def first(rows: Sequence[PartRow]) -> PartRow:
    """Return the first draft that is not empty."""
    return next((row for row in rows if len(row)), EMPTY)


def longest(rows: Sequence[PartRow]) -> PartRow:
    """Return the draft with most tokens, the first among equals, as point masses."""
    row = max(rows, key=len, default=EMPTY)
    return PartRow(row.tokens, row.parents, row.origin)


def extend(rows: Sequence[PartRow]) -> PartRow:
    """Return the first draft that is not empty, continued by the longest other one that begins with it."""
    base = first(rows)
    n = len(base)
    best = base
    for row in rows:
        if len(row) > len(best) and row.tokens[:n] == base.tokens:
            best = row
    if best is base:
        return base
    q_row = None if base.q_row is None else [*base.q_row, *[-1] * (len(best) - n)]
    return PartRow(best.tokens, None, [*base.origin, *best.origin[n:]], q_row)


def merge(rows: Sequence[PartRow], estimates: Sequence[Estimate], limit: int) -> PartRow:
    """Return one tree of at most `limit` nodes: common beginnings once, the nodes that are likeliest to be accepted.

    A node's chance is that of its parent times the chance that one of the parts which drafted it is right there: by the
    part's own estimate, else by how often its drafts came true at that depth. Every node's chance is at most its
    parent's, so that the likeliest nodes are a tree.
    """
    nodes = _joined(rows, estimates)
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    heap: list[tuple[float, int]] = []
    _open(heap, nodes, children.get(-1, ()), 1.0)
    place: dict[int, int] = {-1: -1}
    tokens: list[int] = []
    parents: list[int] = []
    origin: list[int] = []
    confidence: list[float] = []
    while heap and len(tokens) < limit:
        negative, index = heappop(heap)
        node = nodes[index]
        place[index] = len(tokens)
        tokens.append(node.token)
        parents.append(place[node.parent])
        origin.append(node.drafted_by[0])
        confidence.append(-negative)
        _open(heap, nodes, children.get(index, ()), -negative)
    return PartRow(tokens, parents, origin, confidence=confidence)


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    depth: int
    drafted_by: list[int]
    wrong: dict[int, float]  # of each part that drafted it, the chance that it is not right where its parent is


def _joined(rows: Sequence[PartRow], estimates: Sequence[Estimate]) -> list[_Node]:
    """Return the nodes of all drafts, each path once."""
    nodes: list[_Node] = []
    known: dict[tuple[int, int], int] = {}
    for row in rows:
        at: list[int] = []
        for i, token in enumerate(row.tokens):
            before = i - 1 if row.parents is None else row.parents[i]
            parent = -1 if before < 0 else at[before]
            index = known.setdefault((parent, token), len(nodes))
            if index == len(nodes):
                nodes.append(_Node(token, parent, 0 if parent < 0 else nodes[parent].depth + 1, [], {}))
            at.append(index)
            node, part = nodes[index], row.origin[i]
            node.drafted_by.append(part)
            node.wrong[part] = 1.0 - (
                estimates[part].rate(node.depth) if row.confidence is None else _step(row.confidence, i, before)
            )
    return nodes


def _step(confidence: Sequence[float], node: int, parent: int) -> float:
    """Return the chance of a node once its parent is accepted, by estimates of whole paths."""
    whole = 1.0 if parent < 0 else confidence[parent]
    return min(1.0, confidence[node] / whole) if whole > 0 else 0.0


def _open(heap: list[tuple[float, int]], nodes: Sequence[_Node], indices: Sequence[int], chance: float) -> None:
    for index in indices:
        heappush(heap, (-chance * (1.0 - math.prod(nodes[index].wrong.values())), index))
