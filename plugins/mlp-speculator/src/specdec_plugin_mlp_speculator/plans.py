"""How a speculator's states become trees of the likeliest sequences; it reads no files."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_nn.drafters.draft_sampler import largest
from specdec_nn.drafters.hidden_state import Round
from specdec_nn.drafters.sequences import sequence_trees
from specdec_nn.drafters.tree_walk import newest_ids
from specdec_plugin_mlp_speculator.network import Network
from specdec_plugin_mlp_speculator.trees import Form


class CandidatesPlan:
    """Drafts the likeliest sequences as one tree, in which what they begin with in common stands once.

    At head i each sequence goes on with its `widths[i]` likeliest ids; of all sequences at the end the `kept` with the
    largest sums of log-probabilities stay. Nodes stand in the order of the sequences, the likeliest first, so that
    where a request may have fewer nodes it gets the likeliest sequences.
    """

    def __init__(self, network: Network, form: Form) -> None:
        """Take the network and the form of the tree."""
        self._network, self._form = network, form

    def __call__(self, drafts: Round) -> Draft:
        """Return a tree for each request, cut to its first `limits` nodes."""
        requests, widths = len(drafts.names), self._form.widths
        tokens, states = newest_ids(drafts), self._network.begin(drafts.states)
        scores = torch.zeros(requests, dtype=torch.float32, device=states.device)
        made: list[Tensor] = []  # of each depth: the ids of all sequences, [A, sequences]
        for depth, width in enumerate(widths):
            states = self._network.step(depth, states, tokens)
            distribution = torch.log_softmax(self._network.logits(depth, states).float(), dim=-1)
            likely, ids = largest(distribution, width)
            scores, tokens = (scores[:, None] + likely).flatten(), ids.flatten()
            states = states.repeat_interleave(width, dim=0)
            made.append(tokens.view(requests, -1))
        best = largest(scores.view(requests, -1), self._form.kept)[1].cpu().numpy()
        # The sequence of each depth that a kept one goes through.
        through = [best // math.prod(widths[depth + 1 :]) for depth in range(len(widths))]
        found = [np.take_along_axis(one.cpu().numpy(), way, axis=1) for one, way in zip(made, through, strict=True)]
        return sequence_trees(np.stack(found, axis=-1), drafts.limits)
