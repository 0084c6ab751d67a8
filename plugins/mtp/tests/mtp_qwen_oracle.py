"""MTP modules of Qwen3-Next and Qwen3.5 by the plainest code, float64 and dense, from docs/checkpoints.md alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from mtp_oracle import Config, attend, silu, turned
from torch import Tensor

EXPERTS = ("qwen3_next", "qwen3_5_moe")


class QwenModule:
    """Module `i`; tensors by their whole names, `embedding` and `head` [V, H] the target's."""

    def __init__(
        self, family: str, config: Config, tensors: Mapping[str, Tensor], i: int, *, embedding: Tensor, head: Tensor
    ) -> None:
        """Read the tensors in float64."""
        self.experts, self.at = family in EXPERTS, f"mtp.layers.{i}."
        self.config = config.get("text_config") or config
        self.t = {name: tensor.double() for name, tensor in tensors.items() if name.startswith("mtp.")}
        self.embedding, self.head = embedding.double(), head.double()
        self.normed = self.config.get("norm_topk_prob", True) if family == "qwen3_next" else True

    def run(self, tokens: Sequence[int], states: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits [T, V] and feedback [T, H] of rows."""
        e = self._norm(self.embedding[torch.tensor(list(tokens))], "mtp.pre_fc_norm_embedding")
        g = self._norm(states.double(), "mtp.pre_fc_norm_hidden")
        x = torch.cat([e, g], dim=-1) @ self.t["mtp.fc.weight"].T
        x = x + self._attention(self._norm(x, f"{self.at}input_layernorm"), torch.tensor(list(positions)))
        y = self._norm(x, f"{self.at}post_attention_layernorm")
        x = x + (self._mixture(y) if self.experts else self._mlp(y, "mlp."))
        out = self._norm(x, "mtp.norm")
        return out @ self.head.T, out

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean = (x * x).mean(-1, keepdim=True)
        return (1.0 + self.t[f"{name}.weight"]) * x / torch.sqrt(mean + float(self.config["rms_norm_eps"]))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.t[f"{self.at}{name}.weight"].T

    def _mlp(self, x: Tensor, at: str) -> Tensor:
        return self._linear(silu(self._linear(x, f"{at}gate_proj")) * self._linear(x, f"{at}up_proj"), f"{at}down_proj")

    def _attention(self, x: Tensor, place: Tensor) -> Tensor:
        heads, kv, width = (self.config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        both = self._linear(x, "self_attn.q_proj")
        queries = [both[:, 2 * width * h : 2 * width * h + width] for h in range(heads)]
        gates = [both[:, 2 * width * h + width : 2 * width * (h + 1)] for h in range(heads)]
        q = self._norm(torch.stack(queries, 1), f"{self.at}self_attn.q_norm")
        k = self._norm(self._linear(x, "self_attn.k_proj").view(-1, kv, width), f"{self.at}self_attn.k_norm")
        v = self._linear(x, "self_attn.v_proj").view(-1, kv, width)
        rope = self.config["rope_parameters"]
        n, base = int(width * rope["partial_rotary_factor"]), float(rope["rope_theta"])
        q, k = (torch.cat([turned(z[..., :n], place, base, neighbours=False), z[..., n:]], dim=-1) for z in (q, k))
        mixed = attend(q, k, v, width**-0.5) * torch.sigmoid(torch.cat(gates, dim=-1))
        return self._linear(mixed, "self_attn.o_proj")

    def _mixture(self, x: Tensor) -> Tensor:
        """The best experts by softmax, and an expert that all rows share by as much as its own gate lets through."""
        out = []
        for row, scores in zip(x, torch.softmax(self._linear(x, "mlp.gate"), dim=-1), strict=True):
            weights, ids = scores.topk(self.config["num_experts_per_tok"])
            weights = weights / weights.sum() if self.normed else weights
            of_each = [self._mlp(row[None], f"mlp.experts.{int(n)}.")[0] for n in ids]
            out.append(sum(w * y for w, y in zip(weights, of_each, strict=True)))
        shared = torch.sigmoid(self._linear(x, "mlp.shared_expert_gate")) * self._mlp(x, "mlp.shared_expert.")
        return torch.stack([torch.as_tensor(y) for y in out]) + shared
