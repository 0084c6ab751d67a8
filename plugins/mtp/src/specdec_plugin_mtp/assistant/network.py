"""The network of a Gemma 4 assistant: layers with queries alone over one row a request; it reads no files.

Source: transformers, `models/gemma4_assistant/modeling_gemma4_assistant.py` and `models/gemma4/modeling_gemma4.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.target_keys import CommittedKeys
from specdec_nn.layers.block import Linear, RMSNorm

Turn = tuple[Tensor, Tensor]  # cosines and sines [A, 1, D]


@dataclass(frozen=True, slots=True)
class AssistantLayer:
    """One layer: x + N(attention(N x)), then x + N(mlp(N x)), then times its scalar.

    kind, source, window  its type, the target's layer whose keys it meets, and how many of them it sees (None: all)
    norms                 before attention, behind it, before the MLP, behind it
    """

    kind: str
    source: int
    window: int | None
    heads: int
    norms: tuple[RMSNorm, RMSNorm, RMSNorm, RMSNorm]
    query: Linear
    query_norm: RMSNorm
    output: Linear
    gate_up: Linear
    down: Linear
    activation: Callable[[Tensor], Tensor]
    scalar: Tensor

    def __call__(self, x: Tensor, turn: Turn, keys: CommittedKeys) -> Tensor:
        """Return rows [A, H] of rows [A, H]."""
        before, behind, before_mlp, behind_mlp = self.norms
        x = x + behind(self.output(self._attend(before(x), turn, keys)))
        gate, up = self.gate_up(before_mlp(x)).chunk(2, dim=-1)
        return (x + behind_mlp(self.down(self.activation(gate) * up))) * self.scalar

    def _attend(self, x: Tensor, turn: Turn, keys: CommittedKeys) -> Tensor:
        queries = self.query_norm(self.query(x).view(len(x), self.heads, -1))
        cos, sin = turn
        low, high = queries.chunk(2, dim=-1)
        queries = queries * cos + torch.cat([-high, low], dim=-1) * sin
        return keys.attend(self.source, queries, scaling=1.0, window=self.window).reshape(len(x), -1)


@dataclass(frozen=True, slots=True)
class Assistant:
    """The whole drafter.

    embed         the target's embedding of ids, with the factor that it puts on it
    turns         cosines and sines of positions [A], by type of layer
    suppressed    [s] ids that are never drafted
    softcap, ids  of the logits: the cap, None without one, and how many of their first rows are ids
    """

    embed: Callable[[Tensor], Tensor]
    before: Linear
    layers: Sequence[AssistantLayer]
    norm: RMSNorm
    behind: Linear
    head: Linear
    turns: Callable[[Tensor], Mapping[str, Turn]]
    suppressed: Tensor
    softcap: float | None
    ids: int

    def __call__(self, tokens: Tensor, states: Tensor, turns: Mapping[str, Turn], keys: CommittedKeys) -> Tensor:
        """Return the assistant's states [A, H] of ids [A] and the target's states [A, Hb], or what `feedback` made."""
        x = self.before(torch.cat([self.embed(tokens).to(states.dtype), states], dim=-1))
        for layer in self.layers:
            x = layer(x, turns[layer.kind], keys)
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """Return draft logits [A, V] of its states."""
        logits = self.head(states)[:, : self.ids]
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits.index_fill(1, self.suppressed, float("-inf")) if len(self.suppressed) else logits

    def feedback(self, states: Tensor) -> Tensor:
        """Return what stands for the target's state in the next draft, [A, Hb]."""
        return self.behind(states)
