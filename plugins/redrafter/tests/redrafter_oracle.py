"""Drafts of recurrent drafters by the plainest code in float64, written from the formulas alone (arXiv 2403.09919)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from redrafter_checkpoints import TABLE, VOCAB, Drafter
from torch import Tensor

KEPT, NEVER = 50, -50000.0


@dataclass(frozen=True)
class Nodes:
    """Drafted ids with the index of each one's parent (-1 = the newest id), and the least gap a choice rests on."""

    tokens: list[int]
    parents: list[int]
    margin: float


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def carried(drafter: Drafter, ids: Sequence[int]) -> Tensor:
    """Return s behind the newest id and drafts."""
    s = torch.zeros(TABLE.shape[1], dtype=torch.float64)
    for token in ids:
        embedding = TABLE[token].double()
        if drafter.rnn is None:
            s = embedding + s
        else:
            w, u, b = (tensor.double() for tensor in drafter.rnn)
            s = silu(w @ embedding + u @ s + b)
    return s


def logits(drafter: Drafter, state: Tensor, ids: Sequence[int]) -> Tensor:
    """Return logits [V] of the id after these, which begin with the newest one; -inf where the drafter has no row."""
    x = torch.cat([state.double(), carried(drafter, ids)])
    if drafter.projection is not None:
        weight, bias = drafter.projection
        x = weight.double() @ x + bias.double()
    for weight, bias in drafter.layers:
        x = x + silu(weight.double() @ x + bias.double())
    z = (drafter.output.double() @ x)[:VOCAB]
    return torch.cat([z, torch.full((VOCAB - len(z),), -math.inf, dtype=torch.float64)])


def chain(drafter: Drafter, state: Tensor, newest: int, k: int) -> Nodes:
    """Return the likeliest id, k times."""
    ids, margin = [newest], math.inf
    for _ in range(k):
        values, order = logits(drafter, state, ids).sort(descending=True)
        ids.append(int(order[0]))
        margin = min(margin, float(values[0] - values[1]))
    return Nodes(ids[1:], list(range(-1, k - 1)), margin)


def search(drafter: Drafter, state: Tensor, newest: int, beams: int, depth: int) -> tuple[list[list[int]], float]:
    """Return the beams without the newest id, the best first, and the least gap that their choice rests on."""
    found, scores, margin = [[newest]] * beams, [0.0] + [NEVER] * (beams - 1), math.inf
    for _ in range(depth):
        candidates = []
        for ids, score in zip(found, scores, strict=True):
            z = logits(drafter, state, ids)
            z = z - z.max()
            best = set(sorted(range(VOCAB), key=lambda i: (-float(z[i]), i))[:KEPT])
            cut = torch.tensor([float(z[i]) if i in best else NEVER for i in range(VOCAB)], dtype=torch.float64)
            lp = cut - torch.logsumexp(cut, 0)
            candidates += [(score + float(lp[i]), ids, i) for i in range(VOCAB)]
        candidates.sort(key=lambda entry: -entry[0])
        kept = candidates[: beams + 1]
        margin = min(margin, *(a[0] - b[0] for a, b in itertools.pairwise(kept)))
        found = [[*ids, token] for _, ids, token in kept[:beams]]
        scores = [score for score, _, _ in kept[:beams]]
    return [ids[1:] for ids in found], margin


def packed(beams: Sequence[Sequence[int]], limit: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents of the trie of beams, a node kept by the first beam that has its prefix."""
    known: dict[tuple[int, ...], int] = {}
    tokens, parents = [], []
    for beam in beams:
        for depth in range(1, len(beam) + 1):
            prefix = tuple(beam[:depth])
            if prefix not in known:
                known[prefix] = len(tokens)
                tokens.append(prefix[-1])
                parents.append(known.get(prefix[:-1], -1))
    return tokens[:limit], parents[:limit]


def tree(drafter: Drafter, state: Tensor, newest: int, form: tuple[int, int, int], limit: int) -> Nodes:
    """Return the first nodes of the best beams; `form` has the beams, their depth, and how many are verified."""
    beams, depth, verified = form
    found, margin = search(drafter, state, newest, beams, depth)
    return Nodes(*packed(found[:verified], limit), margin)
