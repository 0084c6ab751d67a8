"""What a Gemma 4 assistant drafts, by its formulas in float64; it shares no code with the plugin.

Keys and values are those of transformers' own forward of a float64 copy of the target, over all ids but the newest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class Nodes:
    """A chain, and the smallest gap between the two best logits that it rested on."""

    tokens: list[int]
    parents: list[int]
    margin: float


def norm(x: Any, weight: Any, eps: float) -> Any:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def gelu(x: Any) -> Any:
    """The approximation by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turned(x: Any, position: int, rope: dict[str, Any]) -> Any:
    """Turn heads [h, d] in halves; of type proportional only a part of the pairs turns, by exponents of the whole d."""
    d = x.shape[-1]
    turning = d // 2
    if rope["rope_type"] == "proportional":
        turning = int(rope["partial_rotary_factor"] * d // 2)
    speeds = np.where(np.arange(d // 2) < turning, rope["rope_theta"] ** (-2.0 * np.arange(d // 2) / d), 0.0)
    pairs = (x[:, : d // 2] + 1j * x[:, d // 2 :]) * np.exp(1j * position * speeds)
    return np.concatenate([pairs.real, pairs.imag], -1)


@dataclass
class Oracle:
    """Drafts for a target, from transformers' models, of which configurations and weights alone are read.

    offset  what the position is, counted from the newest id's
    """

    target: Any
    assistant: Any
    offset: int = -1
    suppressed: Sequence[int] = ()
    window: int = field(init=False)

    def __post_init__(self) -> None:
        self.stock = copy.deepcopy(self.target).double()
        self.stock.set_attn_implementation("eager")
        self.weights = {name: tensor.double().numpy() for name, tensor in self.assistant.state_dict().items()}
        self.config = self.assistant.config.get_text_config()
        self.table = self.stock.get_input_embeddings().weight.detach().numpy()
        self.window = self.config.sliding_window

    def forward(self, ids: Sequence[int]) -> tuple[dict[str, tuple[Any, Any]], Any]:
        """Return keys and values [Hkv, n, d] by type of layer, and final states [n, H], of a text."""
        with torch.inference_mode():
            out = self.stock.get_decoder()(
                torch.tensor([list(ids)]), use_cache=False, return_shared_kv_states=True
            )  # fmt: skip
        kept = {kind: (k[0].numpy(), v[0].numpy()) for kind, (k, v) in out.shared_kv_states.items()}
        return kept, out.last_hidden_state[0].numpy()

    def chain(self, text: Sequence[int], state: Any, count: int) -> Nodes:
        """Return `count` greedy drafts behind a text, from the target's state [H] at its last row but one."""
        keys, _ = self.forward(text[:-1])
        position, token, drafted, margin = len(text) - 1 + self.offset, text[-1], [], math.inf
        for _ in range(count):
            logits, state = self.step(token, state, position, keys)
            second, best = np.sort(logits)[-2:]
            margin, token = min(margin, float(best - second)), int(logits.argmax())
            drafted.append(token)
        return Nodes(drafted, list(range(-1, count - 1)), margin)

    def step(self, token: int, state: Any, position: int, keys: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return logits [V] and what stands for the target's state in the next draft."""
        w, eps = self.weights, self.config.rms_norm_eps
        embedded = self.table[token] * math.sqrt(self.table.shape[1])
        x = w["pre_projection.weight"] @ np.concatenate([embedded, state])
        for number, kind in enumerate(self.config.layer_types):
            at = f"model.layers.{number}."
            mixed = self.attention(norm(x, w[at + "input_layernorm.weight"], eps), at, kind, position, keys)
            x = x + norm(mixed, w[at + "post_attention_layernorm.weight"], eps)
            y = norm(x, w[at + "pre_feedforward_layernorm.weight"], eps)
            y = gelu(w[at + "mlp.gate_proj.weight"] @ y) * (w[at + "mlp.up_proj.weight"] @ y)
            x = x + norm(w[at + "mlp.down_proj.weight"] @ y, w[at + "post_feedforward_layernorm.weight"], eps)
            x = x * w[at + "layer_scalar"]
        y = norm(x, w["model.norm.weight"], eps)
        logits = w["model.embed_tokens.weight"] @ y
        cap = self.config.final_logit_softcapping
        logits = logits if cap is None else cap * np.tanh(logits / cap)
        logits[list(self.suppressed)] = -np.inf
        return logits, w["post_projection.weight"] @ y

    def attention(self, y: Any, at: str, kind: str, position: int, keys: dict[str, tuple[Any, Any]]) -> Any:
        w, heads = self.weights, self.config.num_attention_heads
        q = (w[at + "self_attn.q_proj.weight"] @ y).reshape(heads, -1)
        q = norm(q, w[at + "self_attn.q_norm.weight"], self.config.rms_norm_eps)
        q = turned(q, position, self.config.rope_parameters[kind])
        k, v = keys[kind]
        if kind == "sliding_attention":
            k, v = k[:, -self.window :], v[:, -self.window :]
        k, v = k.repeat(heads // len(k), 0), v.repeat(heads // len(v), 0)
        scores = np.einsum("hd,hnd->hn", q, k)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hn,hnd->hd", chances / chances.sum(-1, keepdims=True), v)
        return w[at + "self_attn.o_proj.weight"] @ mixed.reshape(-1)
