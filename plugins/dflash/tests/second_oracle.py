"""DFlash2, LiLiCorr and Domino by the plainest code, float64 and dense; written from the formats alone.

What comes on top of a DFlash block: convolutions around attention and MLP, and a walk over its places in order.
Like `dflash_oracle` it knows stored tensors and the meaning of a configuration, and nothing of the plugin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dflash_oracle import Drafted, Meaning, Oracle
from torch import Tensor

Score = Callable[[list[int]], Tensor]  # logits [V] of the next place, given the ids drafted so far


@dataclass(frozen=True)
class Second:
    """What a configuration of the second generation means.

    taps, group   of the convolutions, 0 without them
    top_k         candidates of a place
    scale, multiplier, cap  of the embeddings, of the logits, and the soft cap of these, None without one
    kind          what goes through the places: "selector", "lattice" or "domino"
    shifted       the first place is the row of the newest id, and the last row is none
    lattice       heads, layers, block, epsilon and scale of a lattice
    """

    taps: int = 0
    group: int = 1
    top_k: int = 4
    scale: float = 1.0
    multiplier: float = 1.0
    cap: float | None = None
    kind: str = "selector"
    shifted: bool = False
    lattice: Mapping[str, Any] | None = None


class SecondOracle(Oracle):
    """One checkpoint over one target."""

    def __init__(
        self, tensors: Mapping[str, Tensor], meaning: Meaning, second: Second, embedding: Tensor, lm_head: Tensor
    ) -> None:
        super().__init__(tensors, meaning, embedding, lm_head)
        self.s = second

    def embed(self, token: int) -> Tensor:
        return super().embed(token) * self.s.scale

    def draft(
        self, rows: Sequence[tuple[int, Tensor]], newest: int, k: int, given: Sequence[int] = (), whole: int = 0
    ) -> Drafted:
        """Draft as `Oracle.draft` does, by the walk of this kind."""
        places = max(k, whole)
        states = self.block(rows, [newest] + [self.m.mask[0]] * places)
        states = states[:-1] if self.s.shifted else states[1:]
        score = {"selector": self.selector, "lattice": self.lattice, "domino": self.domino}[self.s.kind](
            states, newest, rows[-1][1]
        )
        found, ids = Drafted(), list[int]()
        for j in range(k):
            logits = score(ids)
            order = sorted(range(self.vocab), key=lambda i: (-float(logits[i]), i))
            found.margin = min(found.margin, float(logits[order[0]] - logits[order[1]]))
            ids.append(given[j] if given else order[0])
            found.logits.append(logits)
        found.tokens = ids
        return found

    def block(self, rows: Sequence[tuple[int, Tensor]], tokens: Sequence[int]) -> Tensor:
        if not self.s.taps:
            return super().block(rows, tokens)
        c = self.context(torch.stack([state.double() for _, state in rows]))
        n = rows[-1][0] + 1
        positions = [position for position, _ in rows] + [n + j for j in range(len(tokens))]
        x = torch.stack([self.embed(token) for token in tokens])
        for i in range(len(self.m.layers)):
            z = self.rms(x, f"layers.{i}.input_layernorm.weight")
            d = self.dynamic(z, f"layers.{i}.attention_conv")
            out = self.attend(self.conv(z, 0, d, f"layers.{i}.attention_conv"), c, positions, i)
            x = x + self.conv(out, 1, d, f"layers.{i}.attention_conv")
            z = self.rms(x, f"layers.{i}.post_attention_layernorm.weight")
            d = self.dynamic(z, f"layers.{i}.mlp_conv")
            z = self.conv(z, 0, d, f"layers.{i}.mlp_conv")
            gate, up = self.linear(z, f"layers.{i}.mlp.gate_proj"), self.linear(z, f"layers.{i}.mlp.up_proj")
            out = self.linear(gate * torch.sigmoid(gate) * up, f"layers.{i}.mlp.down_proj")
            x = x + self.conv(out, 1, d, f"layers.{i}.mlp_conv")
        return self.rms(x, "norm.weight")

    def context(self, states: Tensor) -> Tensor:
        mixed = self.linear(states, "fc") if "fc.weight" in self.t else states
        return self.rms(mixed, "hidden_norm.weight")

    def dynamic(self, z: Tensor, name: str) -> Tensor:
        width = z.shape[1]
        return self.linear(z, f"{name}.kernel_projection").view(len(z), 2, self.s.taps, width // self.s.group)

    def conv(self, x: Tensor, s: int, d: Tensor, name: str) -> Tensor:
        base, out = self.t[f"{name}.base_kernel"], torch.zeros_like(x)
        for r in range(len(x)):
            for c in range(x.shape[1]):
                for t in range(min(self.s.taps, r + 1)):
                    out[r, c] += (base[s, t, c] + d[r, s, t, c // self.s.group]) * x[r - t, c]
        return out

    def base(self, y: Tensor) -> Tensor:
        u = self.s.multiplier * (self.out @ y)[: self.vocab]
        return u if self.s.cap is None else self.s.cap * torch.tanh(u / self.s.cap)

    def best(self, logits: Tensor) -> list[int]:
        return sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))[: self.s.top_k]

    def on(self, ids: Sequence[int], scores: Sequence[float] | Tensor) -> Tensor:
        logits = torch.full((self.vocab,), -math.inf, dtype=torch.float64)
        for token, score in zip(ids, scores, strict=True):
            logits[token] = float(score)
        return logits

    def selector(self, states: Tensor, newest: int, last: Tensor) -> Score:
        pred, succ = (self.t[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))

        def score(ids: list[int]) -> Tensor:
            y, before = states[len(ids)], [newest, *ids][-1]
            u = self.base(y)
            left = pred[before] * self.linear(y, "candidate_selector.hidden_projection")
            candidates = self.best(u)
            return self.on(candidates, [float(u[c]) + float(left @ succ[c]) for c in candidates])

        return score

    def lattice(self, states: Tensor, newest: int, last: Tensor) -> Score:
        made, n = self.s.lattice, len(states)
        assert made is not None
        logprobs = [self.base(y).log_softmax(-1) for y in states]
        candidates = [self.best(lp) for lp in logprobs]
        x = torch.stack(
            [
                torch.stack([self.entry(states[j], logprobs[j], c, j, r) for r, c in enumerate(candidates[j])])
                for j in range(n)
            ]
        )
        k, width = self.s.top_k, x.shape[-1]
        x = x.view(n * k, width)
        for i in range(made["layers"]):
            p = f"lilicorr.layers.{i}."
            x = x + self.mix(self.rms(x, f"{p}attn_norm.weight"), f"{p}attn.", made["heads"], made["block"])
            z = self.linear(self.rms(x, f"{p}mlp_norm.weight"), f"{p}mlp.up_proj")
            x = x + self.linear(z * torch.sigmoid(z), f"{p}mlp.down_proj")
        x = self.rms(x, "lilicorr.output_norm.weight").view(n, k, width)
        a = self.linear(self.context(last.double()[None])[0], "lilicorr.context_proj")
        a = self.rms(a, "lilicorr.anchor_norm.weight")
        f = self.linear(torch.cat([x, a.expand_as(x), x * a], dim=-1), "lilicorr.factor_input_proj")
        f = f * torch.sigmoid(f)
        out, into = (self.unit(self.linear(f, f"lilicorr.{name}_head"), made["eps"]) for name in ("out", "in"))
        start = self.unit(self.linear(a, "lilicorr.anchor_out_head"), made["eps"])

        def score(ids: list[int]) -> Tensor:
            j = len(ids)
            left = start if j == 0 else out[j - 1, candidates[j - 1].index(ids[-1])]
            return self.on(candidates[j], made["scale"] * (into[j] @ left))

        return score

    def entry(self, y: Tensor, logprobs: Tensor, token: int, place: int, rank: int) -> Tensor:
        """Return the lattice's row of one candidate."""
        lp, k = float(logprobs[token]), self.s.top_k
        features = torch.tensor(
            [lp, math.exp(lp), lp - float(logprobs.max()), rank / max(k - 1, 1), float(rank == 0)], dtype=torch.float64
        )
        centred = features - features.mean()
        normed = centred / torch.sqrt((centred * centred).mean() + 1e-5)
        normed = normed * self.t["lilicorr.feature_norm.weight"] + self.t["lilicorr.feature_norm.bias"]
        hidden = self.linear(normed, "lilicorr.feature_mlp.up_proj")
        seen = self.linear(hidden * torch.sigmoid(hidden), "lilicorr.feature_mlp.down_proj")
        vector = super().embed(token)
        if "lilicorr.token_proj.weight" in self.t:
            vector = self.linear(vector, "lilicorr.token_proj")
        slot, order = (
            self.t["lilicorr.slot_embedding"][0, 0, place, 0],
            self.t["lilicorr.rank_embedding"][0, 0, 0, rank],
        )
        return vector + self.linear(y, "lilicorr.pass_hidden_proj") + seen + slot + order

    def mix(self, x: Tensor, p: str, heads: int, block: int) -> Tensor:
        """Return what each candidate takes from all, by a bias of how far their places are apart."""
        q, k, v = (x @ self.t[f"{p}in_proj_weight"].T + self.t[f"{p}in_proj_bias"]).chunk(3, dim=-1)
        d, topk = x.shape[1] // heads, self.s.top_k
        out = torch.zeros_like(x)
        for h in range(heads):
            own = slice(h * d, (h + 1) * d)
            for i in range(len(x)):
                apart = [i // topk - j // topk for j in range(len(x))]
                bias = torch.stack([self.t["lilicorr.relative_slot_bias"][h, r + block - 1] for r in apart])
                same = torch.tensor([float(r == 0) for r in apart], dtype=torch.float64)
                scores = k[:, own] @ q[i, own] / math.sqrt(d) + bias + same * self.t["lilicorr.same_slot_bias"][h]
                out[i, own] = scores.softmax(-1) @ v[:, own]
        return self.linear(out, f"{p}out_proj")

    def unit(self, x: Tensor, eps: float) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True).clamp(min=eps)

    def domino(self, states: Tensor, newest: int, last: Tensor) -> Score:
        w_i, w_h = self.t["prefix_gru.weight_ih_l0"], self.t["prefix_gru.weight_hh_l0"]
        size = w_h.shape[1]

        def after(g: Tensor, token: int) -> Tensor:
            a, b = w_i @ super(SecondOracle, self).embed(token), w_h @ g
            r, z = torch.sigmoid(a[:size] + b[:size]), torch.sigmoid(a[size : 2 * size] + b[size : 2 * size])
            n = torch.tanh(a[2 * size :] + r * b[2 * size :])
            return (1 - z) * n + z * g

        def score(ids: list[int]) -> Tensor:
            i = len(ids)
            base = self.base(states[i])
            if i == 0:
                return base
            g = torch.zeros(size, dtype=torch.float64)
            for token in [newest, *ids]:
                g = after(g, token)
            hidden = self.t["embed_proj.0.weight"] @ torch.cat([states[i], g])
            return base + (self.t["embed_proj.2.weight"] @ (hidden * torch.sigmoid(hidden)))[: self.vocab]

        return score
