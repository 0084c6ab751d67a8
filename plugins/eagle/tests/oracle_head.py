"""EAGLE heads by the plainest code, float64 and dense, written from the formats alone (1.3, 1.4, 3.4).

Knows the tensors and config keys of a checkpoint as they are stored, and nothing of the plugin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Places = tuple[Sequence[int], Tensor]  # positions of rows, and which rows [T, T] each one sees


def inverse_frequencies(config: Mapping[str, Any], width: int) -> tuple[Tensor, float]:
    """Return the angles per position of `width` / 2 pairs, and the factor on cosine and sine."""
    rope = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    rope |= config.get("rope_parameters") or {}
    base, kind = float(rope["rope_theta"]), rope.get("rope_type", rope.get("type", "default"))
    pairs = [base ** -(2 * i / width) for i in range(width // 2)]
    original = rope.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    factor = float(rope.get("factor") or 1.0)
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = [original * f / (2 * math.pi) for f in pairs]  # turns over the original context
        smooth = [min(1.0, max(0.0, (t - low) / (high - low))) for t in turns]
        return torch.tensor([f * (s + (1 - s) / factor) for f, s in zip(pairs, smooth, strict=True)]).double(), 1.0
    if kind == "yarn":

        def pair_with(turns: float) -> float:
            return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair_with(rope.get("beta_fast") or 32), pair_with(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        slow = [min(1.0, max(0.0, (i - low) / max(high - low, 0.001))) for i in range(width // 2)]
        stretched = [f * (1 - s + s / factor) for f, s in zip(pairs, slow, strict=True)]
        return torch.tensor(stretched).double(), _yarn_scale(rope, factor)
    if kind == "linear":
        pairs = [f / factor for f in pairs]
    return torch.tensor(pairs, dtype=torch.float64), 1.0


def _yarn_scale(rope: Mapping[str, Any], factor: float) -> float:
    def scale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope["mscale"]) / scale(rope["mscale_all_dim"])
    return scale(1.0)


class Head:
    """A head of any layout: `flavour` is llama, llama4, mistral or minicpm for EAGLE-1, and eagle3 for EAGLE-3."""

    def __init__(
        self,
        flavour: str,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        *,
        embedding: Tensor,
        lm_head: Tensor,
    ) -> None:
        """Read the stored tensors; `embedding` [V, H] and `lm_head` [V, H] are the target's."""
        self.flavour, self.config = flavour, config
        self.t = {name.removeprefix("model."): tensor.double() for name, tensor in tensors.items()}
        self.vocab = len(embedding)
        self.table = self.t.get("embed_tokens.weight", embedding.double())
        self.out = self.t.get("lm_head.weight", lm_head.double())
        offsets = self.t.get("d2t", torch.zeros(len(self.out), dtype=torch.float64))
        self.target_ids = torch.arange(len(self.out)) + offsets.long()
        self.eps = float(config["rms_norm_eps"])
        self.layers = int(config["num_hidden_layers"])
        self.nh, self.nkv = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
        self.d = int(config.get("head_dim") or config["hidden_size"] // self.nh)
        self.scale_in = 1.0
        if flavour == "minicpm":
            self.scale_in = config["hidden_size"] / config["dim_model_base"]

    def rms(self, x: Tensor, name: str) -> Tensor:
        return self.t[name] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.t[f"{name}.weight"].T
        return y + self.t[f"{name}.bias"] if f"{name}.bias" in self.t else y

    def feature(self, state: Tensor) -> Tensor:
        """Return what a target's state [n, H] or [n, n_a * H_t] becomes once, before it is fed in."""
        if self.flavour != "eagle3":
            return state.double() / self.scale_in
        state = state.double()
        if "input_norm.weight" in self.t:
            state = self.rms(state, "input_norm.weight")
        if "fc_norm.0.weight" in self.t:
            count = sum(name.startswith("fc_norm.") for name in self.t)
            parts = state.chunk(count, dim=-1)
            state = torch.cat([self.rms(part, f"fc_norm.{j}.weight") for j, part in enumerate(parts)], dim=-1)
        return self.linear(state, "fc") if "fc.weight" in self.t else state

    def forward(self, tokens: Sequence[int], fed: Tensor, positions: Sequence[int], sees: Tensor) -> tuple[Tensor, ...]:
        """Run rows densely: logits [T, target ids] with -inf outside the draft vocabulary, and feedback [T, H_d]."""
        e = self.table[torch.tensor(tokens).clamp(max=len(self.table) - 1)]
        if self.flavour == "eagle3":
            x, feedback = self._eagle3(e, fed, (positions, sees))
        else:
            x, feedback = self._eagle1(e, fed, (positions, sees))
        logits = torch.full((len(tokens), self.vocab), -math.inf, dtype=torch.float64)
        real = self.target_ids < self.vocab
        logits[:, self.target_ids[real]] = (x @ self.out.T)[:, real]
        return logits, feedback

    def _eagle3(self, e: Tensor, g: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        first = "midlayer." if any(name.startswith("midlayer.") for name in self.t) else "layers.0."
        normed = self.rms(g, f"{first}hidden_norm.weight")
        residual = normed if self.config.get("norm_before_residual") else g
        both = torch.cat([self.rms(e, f"{first}input_layernorm.weight"), normed], dim=-1)
        x = residual + self.attention(both, first, places)
        x = x + self.mlp(self.rms(x, f"{first}post_attention_layernorm.weight"), first)
        for i in range(1, self.layers):
            x = self.block(x, f"layers.{i}.", places)
        y = self.rms(x, "norm.weight")
        return y, y if self.config.get("norm_output") else x

    def _eagle1(self, e: Tensor, g: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        strength = 1.0
        if self.flavour == "minicpm":
            e = self.rms(e * self.config["scale_emb"], "input_norm1.weight")
            g = self.rms(g, "input_norm2.weight")
            strength = self.config["scale_depth"] / math.sqrt(self.config.get("mup_denominator") or self.layers)
        x = self.linear(torch.cat([e, g], dim=-1), "eagle_linear" if "eagle_linear.weight" in self.t else "fc")
        for i in range(self.layers):
            x = self.block(x, f"layers.{i}.", places, strength, skips_norm=i == 0 and self.flavour == "llama")
        if self.flavour in ("llama4", "mistral"):
            x = self.rms(x, "norm.weight")
        x = x / self.scale_in
        return x, x

    def block(
        self,
        x: Tensor,
        prefix: str,
        places: Places,
        strength: float = 1.0,
        *,
        skips_norm: bool = False,
    ) -> Tensor:
        z = x if skips_norm else self.rms(x, f"{prefix}input_layernorm.weight")
        x = x + strength * self.attention(z, prefix, places)
        return x + strength * self.mlp(self.rms(x, f"{prefix}post_attention_layernorm.weight"), prefix)

    def mlp(self, z: Tensor, prefix: str) -> Tensor:
        gate = self.linear(z, f"{prefix}mlp.gate_proj")
        up = self.linear(z, f"{prefix}mlp.up_proj")
        return self.linear(gate * torch.sigmoid(gate) * up, f"{prefix}mlp.down_proj")

    def attention(self, z: Tensor, prefix: str, places: Places) -> Tensor:
        positions, sees = places
        rows = len(z)
        q, k, v = (self.linear(z, f"{prefix}self_attn.{n}_proj") for n in "qkv")
        q, k, v = q.view(rows, self.nh, self.d), k.view(rows, self.nkv, self.d), v.view(rows, self.nkv, self.d)
        if f"{prefix}self_attn.q_norm.weight" in self.t:
            q, k = self.rms(q, f"{prefix}self_attn.q_norm.weight"), self.rms(k, f"{prefix}self_attn.k_norm.weight")
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        if self.flavour == "llama4" and self.config.get("use_qk_norm"):
            q, k = (x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) for x in (q, k))
        result = torch.empty(rows, self.nh, self.d, dtype=torch.float64)
        for h in range(self.nh):
            shared = h * self.nkv // self.nh
            scores = q[:, h] @ k[:, shared].T / math.sqrt(self.d)
            result[:, h] = scores.masked_fill(~sees, -math.inf).softmax(dim=-1) @ v[:, shared]
        return self.linear(result.reshape(rows, -1), f"{prefix}self_attn.o_proj")

    def rotate(self, x: Tensor, positions: Sequence[int]) -> Tensor:
        """Turn pairs of the rotated width: neighbours for Llama 4, else one of each half."""
        width = int(self.d * self.config.get("partial_rotary_factor", 1.0))
        frequencies, scale = inverse_frequencies(self.config, width)
        angle = torch.tensor(positions, dtype=torch.float64)[:, None, None] * frequencies
        cos, sin = angle.cos() * scale, angle.sin() * scale
        turned = x.clone()
        if self.flavour == "llama4":
            first, second = slice(0, width, 2), slice(1, width, 2)
        else:
            first, second = slice(0, width // 2), slice(width // 2, width)
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., second] * cos + x[..., first] * sin
        return turned
