"""Drafts of Arctic's LSTM speculators by the plainest code in float64; knows stored tensors and nothing of the plugin.

The cell of "sum_lstm": the gates' rows are forget, input, output, cell, and the id's vector is added to each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from mlp_speculator_oracle import Nodes, constants, gelu, likeliest, norm
from torch import Tensor

GATES = ("forget", "input", "output", "cell")
Carried = tuple[Tensor, Tensor]  # s and c


class Lstm:
    """One speculator, by its tensors as they are stored."""

    def __init__(self, tensors: Mapping[str, Tensor], n_predict: int, *, scale_input: bool, vocab_size: int) -> None:
        self.t = {name: tensor.double() for name, tensor in tensors.items()}
        self.n_predict, self.scale_input, self.vocab_size = n_predict, scale_input, vocab_size

    def begin(self, state: Tensor) -> Carried:
        s = state.double()
        if self.scale_input:
            s = norm(s) / math.sqrt(2)
        return s, torch.zeros(len(self.t["cell_ln.0.weight"]), dtype=torch.float64)

    def shifted(self, x: Tensor, name: str) -> Tensor:
        return self.t[f"{name}.0.weight"] * norm(x) + self.t[f"{name}.0.bias"]

    def step(self, i: int, carried: Carried, token: int) -> Carried:
        s, c = carried
        table = self.t["forget_emb.0.weight"]
        z = table[min(token, len(table) - 1)]
        sw, ew = constants(self.n_predict, len(z))
        forget, entry, exit_, cell = (self.t[f"{gate}_proj.{min(i, 1)}.weight"] @ s + ew / sw * z for gate in GATES)
        g = gelu(self.shifted(cell, "cell_ln"))
        c = c * torch.sigmoid(forget) + g * torch.sigmoid(entry)
        return gelu(self.shifted(c, "state_ln")) * torch.sigmoid(exit_), c

    def logits(self, carried: Carried) -> Tensor:
        return (self.t["head.0.weight"] @ carried[0])[: self.vocab_size]

    def chain(self, state: Tensor, newest: int, k: int) -> Nodes:
        """Return the best id of each step, each going on from the id before."""
        carried, token, tokens, margin = self.begin(state), newest, [], math.inf
        for i in range(k):
            carried = self.step(i, carried, token)
            (token,), gap = likeliest(self.logits(carried), 1)
            tokens.append(token)
            margin = min(margin, gap)
        return Nodes(tokens, list(range(-1, k - 1)), margin)

    def distributions(self, state: Tensor, newest: int, drafted: Sequence[int], temperature: float) -> list[Tensor]:
        """Return the distribution of each id of a drawn chain, given those before it."""
        carried, token, found = self.begin(state), newest, []
        for i, following in enumerate(drafted):
            carried = self.step(i, carried, token)
            found.append((self.logits(carried) / temperature).softmax(-1))
            token = following
        return found

    def tree(self, state: Tensor, newest: int, widths: Sequence[int], kept: int, limit: int) -> Nodes:
        """Return the first `limit` nodes of the likeliest `kept` sequences, beginnings in common once."""
        beam: list[tuple[tuple[int, ...], Carried, float]] = [((), self.begin(state), 0.0)]
        margin = math.inf
        for i, width in enumerate(widths):
            grown = []
            for ids, carried, score in beam:
                after = self.step(i, carried, ids[-1] if ids else newest)
                logprobs = self.logits(after).log_softmax(-1)
                best, gap = likeliest(logprobs, width)
                margin = min(margin, gap)
                grown += [((*ids, token), after, score + float(logprobs[token])) for token in best]
            beam = grown
        best, gap = likeliest([score for _, _, score in beam], kept)
        prefixes: list[tuple[int, ...]] = []
        for ids in (beam[i][0] for i in best):
            prefixes += [ids[:n] for n in range(1, len(ids) + 1) if ids[:n] not in prefixes]
        prefixes = prefixes[:limit]
        parents = [prefixes.index(prefix[:-1]) if len(prefix) > 1 else -1 for prefix in prefixes]
        return Nodes([prefix[-1] for prefix in prefixes], parents, min(margin, gap))
