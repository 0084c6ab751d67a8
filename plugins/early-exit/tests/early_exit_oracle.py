"""What a Llama drafts when it is left behind one of its layers: the formulas in float64, the whole text each time.

Shares no code with the plugin, nor with transformers: RMS norms, rotary embedding in halves, grouped attention, SiLU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec_core.draft import BatchView, Draft


def norm(x: Any, weight: Any, eps: float) -> Any:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def turn(x: Any, theta: float) -> Any:
    """Turn heads [n, h, d]: dimension i and i + d / 2 by position / theta^(2 i / d)."""
    n, _, d = x.shape
    angles = np.arange(n)[:, None] / theta ** (np.arange(0, d, 2) / d)[None, :]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    low, high = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


@dataclass
class Oracle:
    """Early-exit logits of a transformers Llama, of which it reads configuration and weights alone.

    margin  the smallest gap between the two best logits that a draft rested on
    """

    model: Any
    exit_layer: int
    margin: float = field(default=float("inf"))

    def __post_init__(self) -> None:
        self.weights = {name: tensor.double().numpy() for name, tensor in self.model.state_dict().items()}
        self.config = self.model.config

    def logits(self, ids: Sequence[int]) -> Any:
        """Return the logits [V] behind a text: head(norm(R_E)) of its last row."""
        x, eps = self.weights["model.embed_tokens.weight"][list(ids)], self.config.rms_norm_eps
        for layer in range(self.exit_layer):
            own = f"model.layers.{layer}."
            x = x + self._attention(norm(x, self.weights[own + "input_layernorm.weight"], eps), own + "self_attn.")
            y = norm(x, self.weights[own + "post_attention_layernorm.weight"], eps)
            gate, up = (y @ self.weights[f"{own}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weights[own + "mlp.down_proj.weight"].T
        return norm(x[-1], self.weights["model.norm.weight"], eps) @ self.weights["lm_head.weight"].T

    def _attention(self, y: Any, own: str) -> Any:
        heads, groups = self.config.num_attention_heads, self.config.num_key_value_heads
        dims = self.config.hidden_size // heads
        q, k, v = (y @ self.weights[f"{own}{name}_proj.weight"].T for name in "qkv")
        theta = self.config.rope_parameters["rope_theta"]
        q, k = turn(q.reshape(len(y), heads, dims), theta), turn(k.reshape(len(y), groups, dims), theta)
        v = v.reshape(len(y), groups, dims)
        mixed = []
        for head in range(heads):
            group = head * groups // heads
            scores = q[:, head] @ k[:, group].T / np.sqrt(dims)
            scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, group])
        return np.concatenate(mixed, -1) @ self.weights[own + "o_proj.weight"].T

    def drafts(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return `count` greedy drafts behind the known ids."""
        text = list(tokens)
        for _ in range(count):
            logits = self.logits(text)
            second, best = np.sort(logits)[-2:]
            self.margin = min(self.margin, float(best - second))
            text.append(int(logits.argmax()))
        return text[len(tokens) :]


class Checked:
    """A proposer whose every greedy draft is held against the oracle's."""

    def __init__(self, inner: Any, oracle: Oracle) -> None:
        self.inner, self.oracle, self.compared = inner, oracle, 0
        self.start, self.finish, self.close = inner.start, inner.finish, inner.close

    def memory_bytes(self) -> int:
        return self.inner.memory_bytes()

    def propose(self, batch: BatchView) -> Draft:
        draft = self.inner.propose(batch)
        ends = np.cumsum(draft.lengths or ())
        for i, (length, end) in enumerate(zip(draft.lengths or (), ends.tolist(), strict=True)):
            assert length <= batch.max_draft[i]
            got, tokens = draft.tokens[end - length : end].tolist(), batch.request(i).tokens.tolist()
            assert got == self.oracle.drafts(tokens, length), f"{batch.request(i).id} of {len(tokens)} ids"
            self.compared += length
        return draft
