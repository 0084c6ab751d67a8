"""Drafts of Hydra heads by the plainest code in float64, written from the formulas alone (arXiv 2402.05109)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra_checkpoints import TABLE, TARGET, VOCAB, Head, Heads, Linear
from torch import Tensor

Path = tuple[int, ...]


@dataclass(frozen=True)
class Nodes:
    """Drafted ids with the index of each one's parent (-1 = the newest id), and the least gap a choice rests on."""

    tokens: list[int]
    parents: list[int]
    margin: float


def apply(linear: Linear, x: Tensor) -> Tensor:
    return linear[0].double() @ x + linear[1].double()


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight.double() * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """Turn dimension i of a head with i + d / 2."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def prefix_state(layer: Mapping[str, Tensor], config: Mapping[str, Any], states: Tensor, at: Sequence[int]) -> Tensor:
    """Return what the prefix layer and its norm make of the last of the states [m, H] at these positions."""
    t = {name: tensor.double() for name, tensor in layer.items()}
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    x = states.double()
    normed = rms(x, t["layers.0.input_layernorm.weight"], eps)
    q = (t["layers.0.self_attn.q_proj.weight"] @ normed[-1]).view(heads, -1)
    k = (normed @ t["layers.0.self_attn.k_proj.weight"].T).view(len(x), kv_heads, -1)
    v = (normed @ t["layers.0.self_attn.v_proj.weight"].T).view(len(x), kv_heads, -1)
    mixed = []
    for head in range(heads):
        own = head * kv_heads // heads
        query = turned(q[head], at[-1], theta)
        keys = torch.stack([turned(k[row, own], at[row], theta) for row in range(len(x))])
        weights = torch.softmax(keys @ query / math.sqrt(len(query)), dim=0)
        mixed.append(weights @ v[:, own])
    x1 = x[-1] + t["layers.0.self_attn.o_proj.weight"] @ torch.cat(mixed)
    z = rms(x1, t["layers.0.post_attention_layernorm.weight"], eps)
    gate, up = (t[f"layers.0.mlp.{name}_proj.weight"] @ z for name in ("gate", "up"))
    return rms(x1 + t["layers.0.mlp.down_proj.weight"] @ (silu(gate) * up), t["norm.weight"], eps)


def head_logits(head: Head, x: Tensor, path: Sequence[int], table: Tensor = TABLE, vocab_size: int = VOCAB) -> Tensor:
    """Return a head's logits over the target's ids, -inf where it knows an id not; `path` begins with the newest id."""
    if head.residual is None:
        z = x + silu(apply(head.blocks[0], x))
    else:
        c = torch.cat([x, *(table[token].double() for token in path)])
        z = apply(head.residual, c) + silu(apply(head.blocks[0], c))
    for block in head.blocks[1:]:
        z = z + silu(apply(block, z))
    logits = apply(head.output, z)[:vocab_size]
    return torch.cat([logits, torch.full((vocab_size - len(logits),), -math.inf, dtype=torch.float64)])


def input_state(heads: Heads, row: Any) -> Tensor:
    """Return x of a `specdec_testing.watching.Row`."""
    if heads.prefix is None:
        return row.state.double()
    return prefix_state(heads.prefix, TARGET.config.to_dict(), row.states, row.positions)


def likeliest(logits: Tensor, count: int) -> tuple[list[int], float]:
    """Return the ids of the largest entries, best first, and the least gap between any of them and the next."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    values = [float(logits[i]) for i in order[: count + 1]]
    return order[:count], min((a - b for a, b in itertools.pairwise(values)), default=math.inf)


def tree(heads: Heads, row: Any, paths: Sequence[Path]) -> Nodes:
    """Return the first nodes of a tree up to the row's limit; a chain is the tree (0), (0, 0), ..."""
    ordered = sorted(paths, key=lambda path: (len(path), path))[: row.limit]
    x, margin = input_state(heads, row), math.inf
    ids: dict[Path, int] = {(): row.text[-1]}
    for parent in dict.fromkeys(path[:-1] for path in ordered):
        width = 1 + max(path[-1] for path in ordered if path[:-1] == parent)
        above = [ids[parent[:depth]] for depth in range(len(parent) + 1)]
        best, gap = likeliest(head_logits(heads.heads[len(parent)], x, above), width)
        ids |= {(*parent, rank): token for rank, token in enumerate(best)}
        margin = min(margin, gap)
    parents = [ordered.index(path[:-1]) if len(path) > 1 else -1 for path in ordered]
    return Nodes([ids[path] for path in ordered], parents, margin)


def chain(heads: Heads, row: Any) -> Nodes:
    """Return the best id of each head up to the row's limit."""
    return tree(heads, row, [(0,) * depth for depth in range(1, len(heads.heads) + 1)])
