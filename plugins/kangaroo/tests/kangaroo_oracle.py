"""What Kangaroo drafts, by its formulas in float64 over the whole text each time; shares no code with the plugin.

States behind the exit layer are those of transformers' own forward of a float64 copy of the target.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView


def norm(x: Any, weight: Any, eps: float) -> Any:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def turned(x: Any, places: Any, theta: float) -> Any:
    """Turn heads [n, h, d]: dimensions i and i + d / 2 as a pair, by position / theta^(2 i / d)."""
    d = x.shape[-1]
    angles = np.asarray(places, np.float64)[:, None, None] * theta ** (-np.arange(0, d, 2) / d)
    pairs = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], -1)


@dataclass
class Row:
    """A state R_E [H] and its position."""

    place: int
    state: Any


@dataclass
class Oracle:
    """Drafts of a target, an exit layer, and an adapter's tensors and configuration.

    margin  the smallest gap between the two best logits that a draft rested on
    """

    model: Any
    exit_layer: int
    tensors: Mapping[str, torch.Tensor]
    config: Mapping[str, Any]
    margin: float = field(default=float("inf"))

    def __post_init__(self) -> None:
        self.stock = copy.deepcopy(self.model).double()
        self.stock.set_attn_implementation("eager")
        self.weights = {name: tensor.double().numpy() for name, tensor in self.tensors.items()}
        self.head = self.stock.get_output_embeddings().weight.detach().numpy()

    def states(self, ids: Sequence[int]) -> Any:
        """Return R_E [n, H] of a text."""
        with torch.inference_mode():
            out = self.stock.get_decoder()(torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True)
        return out.hidden_states[self.exit_layer][0].numpy()

    def logits(self, rows: Sequence[Row]) -> Any:
        """Return the logits [V] behind the last of these rows, which it sees all."""
        x, places, layer = np.stack([row.state for row in rows]), np.array([row.place for row in rows]), 0
        while f"layers.{layer}.input_layernorm.weight" in self.weights:
            x = x + self._attention(x, places, f"layers.{layer}.")
            layer += 1
        return self.head @ norm(x[-1], self.weights["norm.weight"], self.config["rms_norm_eps"])

    def _attention(self, x: Any, places: Any, own: str) -> Any:
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        y = norm(x, self.weights[f"{own}input_layernorm.weight"], self.config["rms_norm_eps"])
        q, k, v = (y @ self.weights[f"{own}self_attn.{name}_proj.weight"].T for name in "qkv")
        d, theta = q.shape[1] // heads, self.config.get("rope_theta", 10000.0)
        q = turned(q.reshape(-1, heads, d), places, theta)
        k = turned(k.reshape(-1, groups, d), places, theta).repeat(heads // groups, 1)
        v = v.reshape(-1, groups, d).repeat(heads // groups, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
        scores = np.where(np.tri(len(x)) > 0, np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
        mixed = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        return mixed.reshape(len(x), -1) @ self.weights[f"{own}self_attn.o_proj.weight"].T

    def drafts(self, tokens: Sequence[int], given: Sequence[Row], count: int) -> tuple[list[int], list[float]]:
        """Return `count` greedy drafts behind the known ids, and the probability of each."""
        text, rows, chances = list(tokens), list(given), list[float]()
        for _ in range(count):
            rows.append(Row(len(text) - 1, self.states(text)[-1]))
            logits = self.logits(rows)
            second, best = np.sort(logits)[-2:]
            self.margin = min(self.margin, float(best - second))
            chances.append(float(1 / np.exp(logits - best).sum()))
            text.append(int(logits.argmax()))
        return text[len(tokens) :], chances


class Checked:
    """A proposer whose every greedy draft is held against the oracle's, made of the rows that the proposer was given.

    threshold  below which a draft has to end; None: each is as long as allowed
    of_target  whether the rows must be the target's own states, in a host that may lack room for all of a draft
    """

    def __init__(self, inner: Any, oracle: Oracle, threshold: float | None = None, *, of_target: bool = False) -> None:
        self.inner, self.oracle, self.threshold, self.of_target = inner, oracle, threshold, of_target
        self.compared = self.ended = self.gaps = 0
        self._given: dict[str, list[Row]] = {}
        self.close, self.memory_bytes = inner.close, inner.memory_bytes

    def start(self, request: RequestView) -> None:
        self._given[request.id] = []
        self.inner.start(request)

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        self.inner.finish(request, reason)

    def propose(self, batch: BatchView) -> Draft:
        assert batch.rows is not None
        for i, (owner, place) in enumerate(
            zip(batch.rows.request.tolist(), batch.rows.positions.tolist(), strict=True)
        ):
            state = batch.rows.aux[i, 0].double().numpy()
            self._given[batch.request(owner).id].append(Row(place, state))
            if self.of_target:
                own = self.oracle.states(batch.request(owner).tokens[: place + 1].tolist())[-1]
                np.testing.assert_allclose(state, own, rtol=1e-3, atol=1e-3)
        draft = self.inner.propose(batch)
        ends = np.cumsum(draft.lengths or ())
        for i, (length, end) in enumerate(zip(draft.lengths or (), ends.tolist(), strict=True)):
            request, limit = batch.request(i), int(batch.max_draft[i])
            given = self._given[request.id]
            assert length <= limit and (length or not limit or self.of_target)
            if not length:
                continue
            ids, chances = self.oracle.drafts(request.tokens.tolist(), given, length)
            assert draft.tokens[end - length : end].tolist() == ids, f"{request.id} of {len(request.tokens)} ids"
            sure = [self.threshold is None or chance >= self.threshold for chance in chances]
            assert all(sure[:-1]) and (length == limit or not sure[-1] or self.of_target)
            self.compared += length
            self.ended += length < limit and not sure[-1]
            self.gaps += len(given) < len(request.tokens) - 1
        return draft
