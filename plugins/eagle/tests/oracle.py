"""Drafts of EAGLE heads by the plainest code, without caches; written from the formats alone (0.3, 2, 4).

Everything is computed from the whole history each time: the committed rows (token to the right, target's state,
position) and, after them, the drafted nodes, each of which sees the rows, its ancestors and itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from oracle_head import Head
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """A committed row: token of the next position, the target's state (final, or aux states side by side), position."""

    token: int
    state: Tensor
    position: int


@dataclass
class Node:
    """A drafted node: target id, parent's index (-1 = the newest id), its logits' row, and what it is fed with."""

    token: int
    parent: int
    depth: int
    logits: Tensor
    fed: Tensor | None = None
    score: float = 0.0


@dataclass
class Tree:
    """Drafts of one request, and the smallest gap by which any choice in making them was decided."""

    nodes: list[Node] = field(default_factory=list)
    margin: float = math.inf

    @property
    def tokens(self) -> list[int]:
        return [node.token for node in self.nodes]

    @property
    def parents(self) -> list[int]:
        return [node.parent for node in self.nodes]


def run(head: Head, rows: Sequence[Row], nodes: Sequence[Node]) -> tuple[Tensor, Tensor]:
    """Run all committed rows and then nodes; return logits and feedback of the last row and of each node."""
    size, n = len(rows) + len(nodes), rows[-1].position + 1
    sees = torch.ones(size, size, dtype=torch.bool).tril()
    sees[len(rows) :, len(rows) :] = False
    for i, node in enumerate(nodes):
        at = i
        while at >= 0:
            sees[len(rows) + i, len(rows) + at] = True
            at = nodes[at].parent
        assert node.fed is not None
    tokens = [row.token for row in rows] + [node.token for node in nodes]
    positions = [row.position for row in rows] + [n + node.depth - 1 for node in nodes]
    fed = [head.feature(row.state[None])[0] for row in rows] + [node.fed for node in nodes]
    logits, feedback = head.forward(tokens, torch.stack(fed), positions, sees)
    return logits[len(rows) - 1 :], feedback[len(rows) - 1 :]


def best(scores: Tensor, count: int) -> tuple[list[int], float]:
    """Return the indices of the largest scores, best first, and the smallest gap that their order rests on."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))
    values = [float(scores[i]) for i in order[: count + 1]]
    return order[:count], min((a - b for a, b in itertools.pairwise(values)), default=math.inf)


def chain(head: Head, rows: Sequence[Row], k: int) -> Tree:
    """Draft k tokens one after the other."""
    return static_tree(head, rows, [(0,) * depth for depth in range(1, k + 1)])


def static_tree(head: Head, rows: Sequence[Row], paths: Sequence[tuple[int, ...]]) -> Tree:
    """Draft a static tree, breadth first: each path is a node's ranks among its siblings from the top."""
    tree, index = Tree(), {path: i for i, path in enumerate(sorted(paths, key=lambda p: (len(p), p)))}
    for path in index:
        depth, parent = len(path), index.get(path[:-1], -1)
        logits, feedback = run(head, rows, [node for node in tree.nodes if node.depth < depth])
        chosen, margin = best(logits[parent + 1], path[-1] + 1)
        tree.margin = min(tree.margin, margin)
        tree.nodes.append(Node(chosen[-1], parent, depth, logits[parent + 1], feedback[parent + 1]))
    return tree


def followed(head: Head, rows: Sequence[Row], tokens: Sequence[int], parents: Sequence[int]) -> Tree:
    """Return given nodes, parents first, each with the logits of its parent; `margin` says nothing then."""
    tree = Tree()
    for token, parent in zip(tokens, parents, strict=True):
        depth = 1 if parent < 0 else tree.nodes[parent].depth + 1
        logits, feedback = run(head, rows, tree.nodes)
        tree.nodes.append(Node(token, parent, depth, logits[parent + 1], feedback[parent + 1]))
    return tree


def dynamic_tree(head: Head, rows: Sequence[Row], top_k: int, depth: int, count: int) -> Tree:
    """Expand `depth` levels, `top_k` nodes a level by cumulative log-probability; keep the `count` best of all made."""
    made, margin = Tree(), math.inf
    level: list[int] = [-1]
    for round_ in range(depth):
        logits, feedback = run(head, rows, made.nodes)
        first = len(made.nodes)
        for parent in level:
            distribution = logits[parent + 1].log_softmax(dim=-1)
            chosen, gap = best(distribution, top_k)
            margin = min(margin, gap)
            before = 0.0 if parent < 0 else made.nodes[parent].score
            for token in chosen:
                node = Node(token, parent, round_ + 1, logits[parent + 1], feedback[parent + 1])
                node.score = before + float(distribution[token])
                made.nodes.append(node)
        scores = torch.tensor([node.score for node in made.nodes[first:]], dtype=torch.float64)
        chosen, gap = best(scores, top_k)
        if round_ < depth - 1:
            margin = min(margin, gap)
        level = [first + i for i in chosen]
    return _reranked(made.nodes, count, margin)


def _reranked(nodes: list[Node], count: int, margin: float) -> Tree:
    """Keep the best by score in the order in which they were made."""
    scores = torch.tensor([node.score for node in nodes], dtype=torch.float64)
    order = sorted(range(len(nodes)), key=lambda i: (-float(scores[i]), i))
    if count < len(order):
        margin = min(margin, float(scores[order[count - 1]] - scores[order[count]]))
    kept = sorted(order[:count])
    place = {-1: -1} | {old: new for new, old in enumerate(kept)}
    chosen = [Node(nodes[i].token, place[nodes[i].parent], nodes[i].depth, nodes[i].logits) for i in kept]
    return Tree(chosen, margin)


def parallel(head: Head, rows: Sequence[Row], k: int, mask_id: int) -> Tree:
    """Draft k tokens in one pass: after the rows, k - 1 rows of the mask token and the mask's state."""
    mask = head.feature(head.t["mask_hidden"].reshape(1, -1))[0]
    n = rows[-1].position + 1
    tokens = [row.token for row in rows] + [mask_id] * (k - 1)
    positions = [row.position for row in rows] + [n + j for j in range(k - 1)]
    fed = torch.stack([head.feature(row.state[None])[0] for row in rows] + [mask] * (k - 1))
    logits, _ = head.forward(tokens, fed, positions, torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril())
    tree = Tree()
    for depth, row in enumerate(logits[len(rows) - 1 :], start=1):
        chosen, margin = best(row, 1)
        tree.margin = min(tree.margin, margin)
        tree.nodes.append(Node(chosen[0], depth - 2, depth, row))
    return tree
