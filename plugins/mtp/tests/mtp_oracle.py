"""Drafts of MTP modules by the plainest code, float64 and dense, without caches.

Written from docs/checkpoints.md and the papers alone: arXiv 2412.19437, section 2.2, and for files of speculators' type
mtp arXiv 2509.18362.

Knows the tensors and config keys of checkpoints as they are stored, and nothing of the plugin or of transformers.
Everything is computed anew from all rows each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row that the target ran and that was delivered: its position and the state that goes in."""

    position: int
    state: Tensor


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def turned(x: Tensor, positions: Tensor, base: float, *, neighbours: bool) -> Tensor:
    """Turn the pairs of x [T, heads, d]: neighbouring dimensions, or one of each half."""
    width = x.shape[-1]
    angle = positions[:, None].double() * base ** (-torch.arange(0, width, 2).double() / width)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., : width // 2], x[..., width // 2 :])
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend causally, row by row: q, k, v [T, heads, d]; returns [T, heads * d_v]."""
    groups = q.shape[1] // k.shape[1]
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=torch.float64)
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = k[: row + 1, head // groups], v[: row + 1, head // groups]
            out[row, head] = torch.softmax(keys @ q[row, head] * scale, dim=0) @ values
    return out.flatten(1)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Module:
    """Module `i` of a family; tensors by their whole names, `embedding` and `head` [V, H] the target's."""

    def __init__(
        self, family: str, config: Config, tensors: Mapping[str, Tensor], i: int, *, embedding: Tensor, head: Tensor
    ) -> None:
        """Read the tensors in float64."""
        self.family, self.config = family, config
        at = {
            "deepseek": f"model.layers.{config.get('num_hidden_layers', 0) + i}.",
            "glm4_moe": f"model.layers.{config.get('num_hidden_layers', 0) + i}.",
            "mimo": f"model.mtp_layers.{i}.",
            "ernie": "model.",
            "longcat": f"model.mtp.layers.{i}.",
            "speculators": f"mtp_layers.{i}.",
        }[family]
        self.t = {name.removeprefix(at): tensor.double() for name, tensor in tensors.items() if name.startswith(at)}
        self.i, self.embedding, self.head = i, embedding.double(), head.double()
        self.final = tensors["model.mtp.norm.weight"].double() if family == "longcat" else None
        self.eps = float(config["rms_norm_eps"])
        rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
        self.base, self.rope = float(rope["rope_theta"]), rope

    def run(self, tokens: Sequence[int], states: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits [T, V] and feedback [T, H] of rows."""
        place = torch.tensor(list(positions))
        e = self.embedding[torch.tensor(list(tokens))]
        if self.family not in ("longcat", "speculators"):
            e = torch.where(place[:, None] == 0, torch.zeros_like(e), e)
        pre = self._block(self._joined(e, states.double()), place)
        if self.family == "ernie":
            return pre @ self.head.T, pre
        own = self.family in ("mimo", "speculators")
        weight = "final_layernorm.weight" if own else "shared_head.norm.weight"
        post = rms(pre, self.t[weight] if self.final is None else self.final, self.eps)
        return post @ self.head.T, pre if self.family == "glm4_moe" else post

    def _joined(self, e: Tensor, g: Tensor) -> Tensor:
        names = {
            "mimo": ("token_layernorm", "hidden_layernorm", "input_proj"),
            "speculators": ("token_layernorm", "hidden_layernorm", "input_proj"),
            "ernie": (f"mtp_emb_norm.{self.i}", f"mtp_hidden_norm.{self.i}", f"mtp_linear_proj.{self.i}"),
            "longcat": ("enorm.m", "hnorm.m", "eh_proj"),
        }.get(self.family, ("enorm", "hnorm", "eh_proj"))
        e, g = (rms(x, self.t[f"{name}.weight"], self.eps) for x, name in zip((e, g), names[:2], strict=True))
        pair = (g, e) if self.family == "mimo" else (e, g)
        return torch.cat(pair, dim=-1) @ self.t[f"{names[2]}.weight"].T

    def _block(self, x: Tensor, place: Tensor) -> Tensor:
        at = f"mtp_block.{self.i}." if self.family == "ernie" else ""
        attention = self._latent if self.family in ("deepseek", "longcat") else self._grouped
        x = x + attention(rms(x, self.t[f"{at}input_layernorm.weight"], self.eps), place, f"{at}self_attn.")
        y = rms(x, self.t[f"{at}post_attention_layernorm.weight"], self.eps)
        if self.family in ("deepseek", "glm4_moe"):
            return x + self._experts(y)
        return x + self._mlp(y, "transformer_layer.mlp." if self.family == "longcat" else f"{at}mlp.")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.t[f"{name}.weight"].T
        return y + self.t[f"{name}.bias"] if f"{name}.bias" in self.t else y

    def _mlp(self, x: Tensor, at: str) -> Tensor:
        return self._linear(silu(self._linear(x, f"{at}gate_proj")) * self._linear(x, f"{at}up_proj"), f"{at}down_proj")

    def _grouped(self, x: Tensor, place: Tensor, at: str) -> Tensor:
        heads, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self._linear(x, f"{at}{name}_proj") for name in "qkv")
        width = q.shape[1] // heads
        q, k, v = q.view(-1, heads, width), k.view(-1, kv, width), v.view(-1, kv, width)
        if f"{at}q_norm.weight" in self.t:
            q, k = rms(q, self.t[f"{at}q_norm.weight"], self.eps), rms(k, self.t[f"{at}k_norm.weight"], self.eps)
        turning = int(width * self.rope.get("partial_rotary_factor", 1.0))
        q, k = (
            torch.cat([turned(z[..., :turning], place, self.base, neighbours=False), z[..., turning:]], -1)
            for z in (q, k)
        )
        return self._linear(attend(q, k, v, width**-0.5), f"{at}o_proj")

    def _latent(self, x: Tensor, place: Tensor, at: str) -> Tensor:
        c, heads = self.config, self.config["num_attention_heads"]
        nope, rope, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        scaled = self.family == "longcat"
        low = rms(self._linear(x, f"{at}q_a_proj"), self.t[f"{at}q_a_layernorm.weight"], 1e-6)
        if scaled and c.get("mla_scale_q_lora", True):
            low = low * math.sqrt(c["hidden_size"] / c["q_lora_rank"])
        q = self._linear(low, f"{at}q_b_proj").view(-1, heads, nope + rope)
        joint = self._linear(x, f"{at}kv_a_proj_with_mqa")
        latent = rms(joint[:, :rank], self.t[f"{at}kv_a_layernorm.weight"], 1e-6)
        if scaled and c.get("mla_scale_kv_lora", True):
            latent = latent * math.sqrt(c["hidden_size"] / rank)
        both = self._linear(latent, f"{at}kv_b_proj").view(-1, heads, nope + c["v_head_dim"])
        turning = turned(joint[:, None, rank:], place, self.base, neighbours=True).expand(-1, heads, -1)
        q = torch.cat([q[..., :nope], turned(q[..., nope:], place, self.base, neighbours=True)], dim=-1)
        k = torch.cat([both[..., :nope], turning], dim=-1)
        return self._linear(attend(q, k, both[..., nope:], (nope + rope) ** -0.5), f"{at}o_proj")

    def _experts(self, x: Tensor) -> Tensor:
        """Sigmoid scores; the best groups by their two best, then the best experts of those, shared experts added."""
        c, out = self.config, []
        bias = self.t["mlp.gate.e_score_correction_bias"]
        for row, scores in zip(x, torch.sigmoid(x @ self.t["mlp.gate.weight"].T), strict=True):
            chosen = (scores + bias).view(c["n_group"], -1)
            best = chosen.topk(2, dim=-1).values.sum(-1).topk(c["topk_group"]).indices
            allowed = torch.full_like(chosen, -math.inf)
            allowed[best] = chosen[best]
            ids = allowed.flatten().topk(c["num_experts_per_tok"]).indices
            weights = scores[ids] / scores[ids].sum() if c["norm_topk_prob"] else scores[ids]
            mixed = sum(
                w * self._mlp(row[None], f"mlp.experts.{int(e)}.")[0] for w, e in zip(weights, ids, strict=True)
            )
            out.append(mixed * c["routed_scaling_factor"])
        return torch.stack(out) + self._mlp(x, "mlp.shared_experts.")


@dataclass
class Chain:
    """Drafts of one request, the logits each was made of, and the smallest gap between two best ids."""

    tokens: list[int]
    logits: list[Tensor]

    @property
    def margin(self) -> float:
        gaps = [logits.topk(2).values for logits in self.logits]
        return min((float(a - b) for a, b in gaps), default=math.inf)


def reuse(module: Module, rows: Sequence[Row], text: Sequence[int], k: int, given: Sequence[int] = ()) -> Chain:
    """Run the one module again and again, on its own state and the last draft; `given` drafts take the place of its."""
    chain = Chain([], [])
    positions, states = [row.position for row in rows], torch.stack([row.state for row in rows]).double()
    tokens = [text[p + 1] for p in positions]
    for _ in range(k):
        logits, feedback = module.run(tokens, states, positions)
        _pick(chain, logits[-1], given)
        tokens, positions = [*tokens, chain.tokens[-1]], [*positions, positions[-1] + 1]
        states = torch.cat([states, feedback[-1:]])
    return chain


def several(
    modules: Sequence[Module], rows: Sequence[Row], text: Sequence[int], k: int, given: Sequence[int] = ()
) -> Chain:
    """Run module s over all rows with the token s places further on and the states that module s - 1 made.

    After the last module the first follows, as if the target had run the drafts: what module j made of the last row
    is the state j rows later.
    """
    chain = Chain([], [])
    positions, states = [row.position for row in rows], torch.stack([row.state for row in rows]).double()
    while len(chain.tokens) < k:
        ends, passed = [], states
        for s, module in enumerate(modules):
            known = [*text, *chain.tokens]
            logits, passed = module.run([known[p + 1 + s] for p in positions], passed, positions)
            ends.append(passed[-1])
            _pick(chain, logits[-1], given)
            if len(chain.tokens) == k:
                return chain
        positions = [*positions, *range(positions[-1] + 1, positions[-1] + 1 + len(modules))]
        states = torch.cat([states, torch.stack(ends)])
    return chain


def _pick(chain: Chain, logits: Tensor, given: Sequence[int]) -> None:
    chain.logits.append(logits)
    chain.tokens.append(given[len(chain.tokens)] if given else int(logits.argmax()))
