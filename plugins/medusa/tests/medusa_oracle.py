"""Drafts of Medusa heads by the plainest code in float64, written from the formats alone (5.2, 5.3, 14.6)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from medusa_checkpoints import Heads
from torch import Tensor

Path = tuple[int, ...]


@dataclass(frozen=True)
class Nodes:
    """Drafted ids with the index of each one's parent (-1 = the newest id), and the least gap a choice rests on."""

    tokens: list[int]
    parents: list[int]
    margin: float


def logits(heads: Heads, k: int, state: Tensor, vocab_size: int) -> Tensor:
    """Return head k's logits over the target's ids, [V]; -inf where it knows an id not."""
    z = state.double()
    for weight, bias in heads.heads[k].layers:
        inner = weight.double() @ z + (0 if bias is None else bias.double())
        z = z + inner / (1 + torch.exp(-inner))
    rows = heads.logit_scale * (heads.heads[k].output.double() @ z)
    if heads.ids is None:
        known = min(len(rows), vocab_size)
        ids, rows = torch.arange(known), rows[:known]
    else:
        ids = heads.ids
    full = torch.full((vocab_size,), -math.inf, dtype=torch.float64)
    full[ids] = rows
    return full


def likeliest(distribution: Tensor, count: int) -> tuple[list[int], float]:
    """Return the ids of the largest entries, best first, and the least gap between any of them and the next."""
    order = sorted(range(len(distribution)), key=lambda i: (-float(distribution[i]), i))
    values = [float(distribution[i]) for i in order[: count + 1]]
    return order[:count], min((a - b for a, b in itertools.pairwise(values)), default=math.inf)


def chain(heads: Heads, state: Tensor, k: int, vocab_size: int) -> Nodes:
    """Return the best id of each of the first k heads."""
    best = [likeliest(logits(heads, depth, state, vocab_size), 1) for depth in range(k)]
    tokens = [ids[0] for ids, _ in best]
    return Nodes(tokens, list(range(-1, k - 1)), min((gap for _, gap in best), default=math.inf))


def tree(heads: Heads, state: Tensor, paths: Sequence[Path], limit: int, vocab_size: int, top: int = 10) -> Nodes:
    """Return the first `limit` nodes of a tree, by the reference's candidate vector: base id, then `top` a head."""
    ordered = sorted(paths, key=lambda path: (len(path), path))[:limit]
    candidates, margin = [-1], math.inf
    for depth in range(max(map(len, ordered))):
        ids, gap = likeliest(logits(heads, depth, state, vocab_size), top)
        candidates += ids
        margin = min(margin, gap)
    places = tree_indices(ordered, top)
    parents = [ordered.index(path[:-1]) if len(path) > 1 else -1 for path in ordered]
    return Nodes([candidates[place] for place in places[1:]], parents, margin)


def tree_indices(ordered: Sequence[Path], top: int = 10) -> list[int]:
    """Return the place in the candidate vector of the base id and of each node."""
    return [0, *(path[-1] + top * (len(path) - 1) + 1 for path in ordered)]
