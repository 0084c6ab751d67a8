"""DFlash and DSpark by the plainest code, float64, dense and without caches; written from the formats alone (10).

Knows stored tensors by name, and what a checkpoint is meant to do as given in words of its own (`Meaning`); it reads no
configuration and nothing of the plugin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Meaning:
    """What a configuration means.

    layers       (causal, window or None) of each layer
    mask         the mask id, and its vector where it is not the embedding's
    from_anchor  row j predicts the place after it; else row j predicts its own place, and row 0 none
    neighbours   rotary pairs are neighbouring dimensions, not those of the two halves
    topk         how many ids of a place may be drafted
    """

    layers: Sequence[tuple[bool, int | None]] = ((False, None), (False, None))
    mask: tuple[int, Tensor | None] = (5, None)
    from_anchor: bool = False
    theta: float = 1e4
    neighbours: bool = False
    value_scale: float = 1.0
    topk: int | None = None
    markov: bool = False
    confidence: bool = False
    eps: float = 1e-5
    heads: tuple[int, int, int] = (4, 2, 8)


@dataclass
class Drafted:
    """Drafts of one request, their logits over target ids, and the smallest gap of a choice."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    margin: float = math.inf


class Oracle:
    """One checkpoint over one target."""

    def __init__(self, tensors: Mapping[str, Tensor], meaning: Meaning, embedding: Tensor, lm_head: Tensor) -> None:
        """Take stored tensors by the names of docs/checkpoints.md, and the target's tables [V, H]."""
        self.t = {name: tensor.double() for name, tensor in tensors.items()}
        self.m, self.vocab = meaning, len(embedding)
        self.table = self.t.get("embed_tokens.weight", embedding.double())
        self.out = self.t.get("lm_head.weight", lm_head.double())
        offsets = self.t.get("d2t", torch.zeros(len(self.out), dtype=torch.float64))
        self.target_ids = (torch.arange(len(self.out)) + offsets.long()).tolist()

    def rms(self, x: Tensor, name: str) -> Tensor:
        return self.t[name] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.m.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.t[f"{name}.weight"].T
        return y + self.t[f"{name}.bias"] if f"{name}.bias" in self.t else y

    def draft(
        self, rows: Sequence[tuple[int, Tensor]], newest: int, k: int, given: Sequence[int] = (), whole: int = 0
    ) -> Drafted:
        """Draft k tokens after committed rows (position, the target's states side by side) and the newest id.

        With `given`, these are the drafts, and their logits are what is asked for. The block has `whole` places where
        that is more.
        """
        places = max(k, whole)
        count = places if self.m.from_anchor else places + 1
        states = self.block(rows, [newest] + [self.m.mask[0]] * (count - 1))
        found, before = Drafted(), newest
        for j, y in enumerate((states if self.m.from_anchor else states[1:])[:k]):
            logits = self.t_logits(y, before)
            order = sorted(range(self.vocab), key=lambda i: (-float(logits[i]), i))
            token = given[j] if given else order[0]
            found.margin = min(found.margin, float(logits[order[0]] - logits[order[1]]))
            found.tokens.append(token)
            found.logits.append(logits)
            if self.m.confidence:
                found.confidence.append(self.sure(y, before))
            before = token
        return found

    def t_logits(self, y: Tensor, before: int) -> Tensor:
        """Return logits over target ids of one place."""
        own = self.out @ y
        allowed = range(len(own))
        if self.m.topk is not None:
            real = [i for i in allowed if self.target_ids[i] < self.vocab]
            allowed = sorted(real, key=lambda i: (-float(own[i]), i))[: self.m.topk]
        if self.m.markov:
            own = own + self.t["markov_head.markov_w2.weight"] @ self.t["markov_head.markov_w1.weight"][before]
        logits = torch.full((self.vocab,), -math.inf, dtype=torch.float64)
        for i in allowed:
            if self.target_ids[i] < self.vocab:
                logits[self.target_ids[i]] = own[i]
        return logits

    def sure(self, y: Tensor, before: int) -> float:
        weight = self.t["confidence_head.proj.weight"][0]
        x = torch.cat([y, self.t["markov_head.markov_w1.weight"][before]])[: len(weight)]
        bias = float(self.t["confidence_head.proj.bias"][0]) if "confidence_head.proj.bias" in self.t else 0.0
        return 1 / (1 + math.exp(-(float(weight @ x) + bias)))

    def block(self, rows: Sequence[tuple[int, Tensor]], tokens: Sequence[int]) -> Tensor:
        """Return normed outputs [B, H] of a block's rows, whose first position is one after the last row's."""
        stacked = torch.stack([state.double() for _, state in rows])
        mixed = self.linear(stacked, "fc") if "fc.weight" in self.t else stacked
        c = self.rms(mixed, "hidden_norm.weight")
        n = rows[-1][0] + 1
        positions = [position for position, _ in rows] + [n + j for j in range(len(tokens))]
        x = torch.stack([self.embed(token) for token in tokens])
        for i in range(len(self.m.layers)):
            z = self.rms(x, f"layers.{i}.input_layernorm.weight")
            x = x + self.attend(z, c, positions, i)
            z = self.rms(x, f"layers.{i}.post_attention_layernorm.weight")
            gate, up = self.linear(z, f"layers.{i}.mlp.gate_proj"), self.linear(z, f"layers.{i}.mlp.up_proj")
            x = x + self.linear(gate * torch.sigmoid(gate) * up, f"layers.{i}.mlp.down_proj")
        return self.rms(x, "norm.weight")

    def embed(self, token: int) -> Tensor:
        mask, vector = self.m.mask
        return vector.double() if token == mask and vector is not None else self.table[token]

    def attend(self, z: Tensor, c: Tensor, positions: Sequence[int], i: int) -> Tensor:
        """Let each row of the block attend to committed rows and to rows of the block, as far as its layer lets it."""
        p, (nh, nkv, d) = f"layers.{i}.self_attn.", self.m.heads
        (causal, window), seen = self.m.layers[i], torch.cat([c, z])
        k = self.rms(self.linear(seen, f"{p}k_proj").view(-1, nkv, d), f"{p}k_norm.weight")
        v = self.linear(seen, f"{p}v_proj").view(-1, nkv, d) * self.m.value_scale
        q = self.rms(self.linear(z, f"{p}q_proj").view(-1, nh, d), f"{p}q_norm.weight")
        k, q = self.turn(k, positions), self.turn(q, positions[len(c) :])
        out = torch.zeros(len(z), nh, d, dtype=torch.float64)
        for r in range(len(z)):
            own = len(c) + r  # a window counts the rows that are there
            keys = [
                j for j in range(len(seen)) if (j <= own or not causal) and (window is None or abs(j - own) < window)
            ]
            for h in range(nh):
                scores = k[keys, h * nkv // nh] @ q[r, h] / math.sqrt(d)
                top = scores.max()
                total = torch.exp(scores - top).sum()
                sink = self.t.get(f"{p}attention_sink_bias")
                if sink is not None:
                    total = total + torch.exp(sink[h] - top)
                out[r, h] = (torch.exp(scores - top) / total) @ v[keys, h * nkv // nh]
        return self.linear(out.flatten(1), f"{p}o_proj")

    def turn(self, x: Tensor, positions: Sequence[int]) -> Tensor:
        width = x.shape[-1]
        for_pairs = torch.tensor([self.m.theta ** -(2 * i / width) for i in range(width // 2)], dtype=torch.float64)
        angle = torch.tensor(positions, dtype=torch.float64)[:, None, None] * for_pairs
        first, second = slice(0, width // 2), slice(width // 2, width)
        if self.m.neighbours:
            first, second = slice(0, width, 2), slice(1, width, 2)
        turned = x.clone()
        turned[..., first] = x[..., first] * angle.cos() - x[..., second] * angle.sin()
        turned[..., second] = x[..., second] * angle.cos() + x[..., first] * angle.sin()
        return turned


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Return the distribution that drafts of a place are drawn from."""
    return torch.softmax(logits / temperature, dim=-1)
