"""How a speculator's states become drafts: chains, or trees of the likeliest sequences; reads no files."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import Draft, IntArray
from specdec_nn.drafters.draft_sampler import DraftSampler, largest
from specdec_nn.drafters.hidden_state import Round
from specdec_plugin_mlp_speculator.network import Network
from specdec_plugin_mlp_speculator.trees import Form

Ids = npt.NDArray[np.int64]


def newest(drafts: Round) -> Tensor:
    """Return the newest id of each request, [A] int64."""
    ids = [int(drafts.batch.request(i).tokens[-1]) for i in drafts.index.tolist()]
    return torch.tensor(ids, dtype=torch.int64, device=drafts.states.device)


class SequencePlan:
    """Drafts one id after the other, each from the state that the one before left."""

    def __init__(self, speculator: Network, sampler: DraftSampler, d2t: Tensor | None) -> None:
        """Take the network, what picks an id from logits, and the offsets [V_d] of its ids."""
        self._speculator, self._sampler, self._d2t = speculator, sampler, d2t

    def __call__(self, drafts: Round) -> Draft:
        """Return chains of `limits` ids."""
        picks = self._sampler.begin(drafts, self._d2t)
        active, tokens = np.arange(len(drafts.names)), newest(drafts)
        states = self._speculator.begin(drafts.states)
        for depth in range(int(drafts.limits.max())):
            states = self._speculator.step(depth, states, tokens)
            tokens = picks.pick(self._speculator.logits(depth, states), active, depth)
            going = np.flatnonzero(drafts.limits[active] > depth + 1)
            chosen = torch.from_numpy(going).to(states.device)
            active, states, tokens = active[going], states[chosen], tokens[chosen]
        return picks.draft()


class CandidatesPlan:
    """Drafts the likeliest sequences as one tree, in which what they begin with in common stands once.

    At head i each sequence goes on with its `widths[i]` likeliest ids; of all sequences at the end the `kept` with the
    largest sums of log-probabilities stay. Nodes stand in the order of the sequences, the likeliest first, so that
    where a request may have fewer nodes it gets the likeliest sequences.
    """

    def __init__(self, speculator: Network, form: Form) -> None:
        """Take the network and the form of the tree."""
        self._speculator, self._form = speculator, form

    def __call__(self, drafts: Round) -> Draft:
        """Return a tree for each request, cut to its first `limits` nodes."""
        requests, widths = len(drafts.names), self._form.widths
        tokens, states = newest(drafts), self._speculator.begin(drafts.states)
        scores = torch.zeros(requests, dtype=torch.float32, device=states.device)
        made: list[Tensor] = []  # of each depth: the ids of all sequences, [A, sequences]
        for depth, width in enumerate(widths):
            states = self._speculator.step(depth, states, tokens)
            law = torch.log_softmax(self._speculator.logits(depth, states).float(), dim=-1)
            likely, ids = largest(law, width)
            scores, tokens = (scores[:, None] + likely).flatten(), ids.flatten()
            states = states.repeat_interleave(width, dim=0)
            made.append(tokens.view(requests, -1))
        best = largest(scores.view(requests, -1), self._form.kept)[1].cpu().numpy()
        return candidate_trees(best, [ids.cpu().numpy() for ids in made], widths, drafts.limits)


def candidate_trees(best: Ids, made: list[Ids], widths: tuple[int, ...], limits: IntArray) -> Draft:
    """Return one tree a request from its best sequences.

    best    [A, n] sequences of the last depth, the likeliest first
    made    of each depth, the ids of its sequences, [A, prod(widths[: depth + 1])]
    limits  [A] the most nodes
    """
    requests, depths = len(best), len(widths)
    # The sequence of each depth that one of the last depth goes through.
    through = np.stack([best // math.prod(widths[depth + 1 :]) for depth in range(depths)], axis=-1)  # [A, n, D]
    ids = np.stack([np.take_along_axis(made[depth], through[..., depth], axis=1) for depth in range(depths)], axis=-1)
    span = math.prod(widths)
    key = ((np.arange(requests)[:, None, None] * depths + np.arange(depths)) * span + through).ravel()
    _, first, back = np.unique(key, return_index=True, return_inverse=True)
    nodes = np.sort(first)  # places in [A, n, D] at which a node stands for the first time, in order
    place: Ids = np.asarray(np.searchsorted(nodes, first))
    number = place[back.ravel()].reshape(through.shape)  # of the node at each place, over all requests
    owner = nodes // (through.shape[1] * depths)
    start = np.searchsorted(owner, np.arange(requests))[owner]
    above = np.concatenate([np.full((*number.shape[:2], 1), -1), number[..., :-1]], axis=-1).ravel()[nodes]
    taken = np.arange(len(nodes)) - start < limits[owner]
    return Draft(
        lengths=np.bincount(owner[taken], minlength=requests).tolist(),
        tokens=ids.ravel()[nodes][taken].astype(np.int32),
        parents=np.where(above < 0, -1, above - start)[taken].astype(np.int32),
    )
