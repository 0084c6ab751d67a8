"""Drafts of MLP speculators by the plainest code in float64, written from the formats alone (6.3)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from mlp_speculator_checkpoints import Weights
from torch import Tensor


@dataclass(frozen=True)
class Nodes:
    """Drafted ids with the index of each one's parent (-1 = the newest id), and the least gap a choice rests on."""

    tokens: list[int]
    parents: list[int]
    margin: float


@dataclass(frozen=True)
class Branch:
    """Ids drafted one after the other, the state behind them, and the sum of their log-probabilities."""

    ids: tuple[int, ...]
    state: Tensor
    score: float = 0.0


def constants(n_predict: int, inner: int) -> tuple[float, float]:
    """Return (sw, ew)."""
    sw = 0.5 ** (0.5 / n_predict)
    return sw, math.sqrt((1 - sw * sw) * inner / 2)


def norm(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-6)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def begin(weights: Weights, state: Tensor) -> Tensor:
    s = state.double()
    return norm(s) / math.sqrt(2) if weights.scale_input else s


def forward(weights: Weights, i: int, s: Tensor, token: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Return the state behind head i, and its logits over the ids that both sides know."""
    head = weights.heads[i]
    sw, ew = constants(len(weights.heads), len(head.weight))
    row = min(token, len(head.embedding) - 1)
    s = head.projection.double() @ s + ew / sw * head.embedding[row].double()
    s = gelu(head.weight.double() * norm(s) + head.bias.double())
    return s, (head.output.double() @ s)[:vocab_size]


def likeliest(values: Sequence[float] | Tensor, count: int) -> tuple[list[int], float]:
    """Return the places of the largest values, best first, and the least gap between any of them and the next."""
    order = sorted(range(len(values)), key=lambda i: (-float(values[i]), i))
    best = [float(values[i]) for i in order[: count + 1]]
    return order[:count], min((a - b for a, b in itertools.pairwise(best)), default=math.inf)


def chain(weights: Weights, state: Tensor, newest: int, k: int, vocab_size: int) -> Nodes:
    """Return the best id of each of the first k heads, each head going on from the id before."""
    s, token, tokens, margin = begin(weights, state), newest, [], math.inf
    for i in range(k):
        s, logits = forward(weights, i, s, token, vocab_size)
        (token,), gap = likeliest(logits, 1)
        tokens.append(token)
        margin = min(margin, gap)
    return Nodes(tokens, list(range(-1, k - 1)), margin)


def candidates(
    weights: Weights, state: Tensor, newest: int, widths: Sequence[int], kept: int, vocab_size: int
) -> tuple[list[tuple[int, ...]], float]:
    """Return the likeliest sequences of a tree, best first, and the least gap a choice rests on."""
    beam, margin = [Branch((), begin(weights, state))], math.inf
    for i, width in enumerate(widths):
        grown = []
        for entry in beam:
            s, logits = forward(weights, i, entry.state, entry.ids[-1] if entry.ids else newest, vocab_size)
            distribution = logits.log_softmax(-1)
            best, gap = likeliest(distribution, width)
            margin = min(margin, gap)
            grown += [Branch((*entry.ids, token), s, entry.score + float(distribution[token])) for token in best]
        beam = grown
    best, gap = likeliest([entry.score for entry in beam], kept)
    return [beam[i].ids for i in best], min(margin, gap)


def tree(
    weights: Weights, state: Tensor, newest: int, widths: Sequence[int], kept: int, limit: int, vocab_size: int
) -> Nodes:
    """Return the first `limit` nodes of the sequences put together, beginnings in common once."""
    sequences, margin = candidates(weights, state, newest, widths, kept, vocab_size)
    prefixes: list[tuple[int, ...]] = []
    for ids in sequences:
        prefixes += [ids[:n] for n in range(1, len(ids) + 1) if ids[:n] not in prefixes]
    prefixes = prefixes[:limit]
    parents = [prefixes.index(prefix[:-1]) if len(prefix) > 1 else -1 for prefix in prefixes]
    return Nodes([prefix[-1] for prefix in prefixes], parents, margin)
