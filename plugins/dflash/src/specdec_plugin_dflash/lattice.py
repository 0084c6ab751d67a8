"""LiLiCorr: a small transformer over the candidates of all places of a block scores them in pairs; reads no files.

After arXiv 2608.20530; the formulas are on docs/dflash.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_nn.drafters.draft_sampler import largest
from specdec_plugin_dflash.choosers import Places, Walk, scattered

Map = Callable[[Tensor], Tensor]
NORM_EPS = 1e-5  # of the norm of features


@dataclass(slots=True)
class LatticeLayer:
    """One layer; `qkv` makes [.., 3 D] of [.., D], the rest [.., D]."""

    attention_norm: Map
    qkv: Map
    out: Map
    mlp_norm: Map
    up: Map
    down: Map


@dataclass(slots=True)
class LatticeParts:
    """The parts of a lattice of width D over k candidates a place.

    token, state, context     [.., H_d] -> [.., D]: embeddings of candidates, states of places, what was committed last
    feature_norm              weight and bias [5]
    feature_up, feature_down  5 -> D -> D
    slots                     [B - 1, D], one vector a place
    ranks                     [k, D]
    bias                      [heads, (B - 1) k, (B - 1) k], added to attention scores
    factor                    [.., 3 D] -> [.., D]
    leave, enter, start       [.., D] -> [.., F]
    """

    embed: Map
    token: Map
    state: Map
    context: Map
    feature_norm: tuple[Tensor, Tensor]
    feature_up: Map
    feature_down: Map
    slots: Tensor
    ranks: Tensor
    bias: Tensor
    layers: Sequence[LatticeLayer]
    output_norm: Map
    anchor_norm: Map
    factor: Map
    leave: Map
    enter: Map
    start: Map


class Lattice:
    """Scores of candidates: the first by what was committed last, each other by the candidate before it."""

    whole = True

    def __init__(self, parts: LatticeParts, *, eps: float, scale: float) -> None:
        """Take the parts, the least length that vectors are divided by, and the factor of scores."""
        self._parts, self._eps, self._scale = parts, eps, scale

    def begin(self, places: Places) -> Walk:
        """Score all pairs."""
        requests, k = len(places.newest), len(self._parts.ranks)
        slots = len(places.states) // max(requests, 1)
        logprobs, candidates = largest(places.base.float().log_softmax(dim=-1), k)
        shape = (requests, slots, k)
        x = self._entries(places.states.view(requests, slots, 1, -1), candidates.view(shape), logprobs.view(shape))
        x = self._parts.output_norm(self._through(x.flatten(1, 2))).view(*shape, -1)
        anchor = self._parts.anchor_norm(self._parts.context(places.last))
        beside = anchor[:, None, None].expand_as(x)
        factors = F.silu(self._parts.factor(torch.cat([x, beside, x * beside], dim=-1)))
        leave, enter = self._unit(self._parts.leave(factors)), self._unit(self._parts.enter(factors))
        start = torch.einsum("rf,rkf->rk", self._unit(self._parts.start(anchor)), enter[:, 0])
        pairs = leave[:, :-1] @ enter[:, 1:].transpose(-1, -2)
        scores = (self._scale * start.float(), self._scale * pairs.float())
        return _LatticeWalk(places.base, candidates.view(shape), *scores)

    def _entries(self, states: Tensor, candidates: Tensor, logprobs: Tensor) -> Tensor:
        """Return a vector [A, slots, k, D] of each candidate: its embedding, its place, and how likely it is there."""
        parts, k = self._parts, candidates.shape[-1]
        rank = torch.arange(k, dtype=torch.float32, device=logprobs.device)
        features = [
            logprobs,
            logprobs.exp(),
            logprobs - logprobs[..., :1],
            (rank / max(k - 1, 1)).expand_as(logprobs),
            (rank == 0).float().expand_as(logprobs),
        ]
        seen = torch.stack(features, dim=-1).to(states.dtype)
        normed = F.layer_norm(seen, seen.shape[-1:], *parts.feature_norm, NORM_EPS)
        vectors = parts.embed(candidates.flatten()).view(*candidates.shape, -1)
        x = parts.token(vectors) + parts.state(states) + parts.feature_down(F.silu(parts.feature_up(normed)))
        return x + parts.slots[: states.shape[1], None] + parts.ranks

    def _through(self, x: Tensor) -> Tensor:
        """Return the vectors [A, slots k, D] behind all layers, in which each sees all."""
        requests, rows, width = x.shape
        heads = len(self._parts.bias)
        bias = self._parts.bias[:, :rows, :rows].to(x.dtype)
        for layer in self._parts.layers:
            parts = layer.qkv(layer.attention_norm(x)).view(requests, rows, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1 / math.sqrt(width // heads))
            x = x + layer.out(mixed.transpose(1, 2).reshape(requests, rows, width))
            x = x + layer.down(F.silu(layer.up(layer.mlp_norm(x))))
        return x

    def _unit(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1, eps=self._eps)


class _LatticeWalk:
    def __init__(self, base: Tensor, candidates: Tensor, start: Tensor, pairs: Tensor) -> None:
        self._base, self._candidates, self._start, self._pairs = base, candidates, start, pairs
        self._chosen = torch.zeros(len(candidates), dtype=torch.int64, device=base.device)
        self._depth = 0

    def logits(self, rows: Tensor, chains: Tensor, depth: int) -> Tensor:
        self._depth = depth
        scores = self._start[chains] if depth == 0 else self._pairs[chains, depth - 1, self._chosen[chains]]
        return scattered(self._base, self._candidates[chains, depth], scores)

    def take(self, chains: Tensor, tokens: Tensor) -> None:
        at = (self._candidates[chains, self._depth] == tokens[:, None]).int().argmax(dim=1)
        self._chosen.index_copy_(0, chains, at)


def attention_bias(relative: Tensor, same: Tensor, k: int) -> Tensor:
    """Return [heads, (B - 1) k, (B - 1) k] of biases by distance [heads, 2 B - 1] and within a place [heads]."""
    size = (relative.shape[1] + 1) // 2
    slot = torch.arange(size - 1, device=relative.device).repeat_interleave(k)
    apart = slot[:, None] - slot[None, :]
    return relative[:, apart + size - 1] + same[:, None, None] * (apart == 0)
