"""The beam search of a recurrent drafter, and what of its beams is drafted; it reads no files."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_nn.drafters.draft_sampler import largest
from specdec_nn.drafters.hidden_state import Round
from specdec_nn.drafters.sequences import SequenceNetwork, sequence_trees
from specdec_nn.drafters.tree_walk import newest_ids
from specdec_plugin_redrafter.options import KEPT


class BeamPlan:
    """Drafts the best beams of a search as one tree, or the best one as a chain.

    Every beam goes on with the ids of its 50 largest logits, whose log-probabilities are those among the 50; of all
    that come of a step, the beams with the largest sums stay. A search does not depend on the limits of requests: where
    a request may have fewer drafts it gets the first nodes, in the order of the beams, the best first.
    """

    def __init__(self, network: SequenceNetwork, beams: int, depth: int, verified: int) -> None:
        """Take the network, the number of beams and of their drafts, and how many beams are drafted."""
        self._network, self._beams, self._depth, self._verified = network, beams, depth, verified

    def __call__(self, drafts: Round) -> Draft:
        """Return a tree for each request, or a chain where one beam is drafted."""
        found = self._search(drafts)[:, : self._verified].cpu().numpy()
        if self._verified == 1:
            return Draft.of([row[0, :limit] for row, limit in zip(found, drafts.limits.tolist(), strict=True)])
        return sequence_trees(found, drafts.limits)

    def _search(self, drafts: Round) -> Tensor:
        """Return the target ids of all beams, [A, beams, depth], the best first."""
        requests, device = len(drafts.names), drafts.states.device
        states, tokens = self._network.begin(drafts.states), newest_ids(drafts)
        scores = torch.zeros((requests, 1), dtype=torch.float32, device=device)
        ids = torch.zeros((requests, 1, 0), dtype=torch.int64, device=device)
        for depth in range(self._depth):
            states = self._network.step(depth, states, tokens)
            logits = self._network.logits(depth, states).float()
            values, likely = largest(logits, min(KEPT, logits.shape[1]))
            width = min(self._beams, values.shape[1])  # of one beam no more can stay
            known = values[:, :width] - torch.logsumexp(values, dim=-1, keepdim=True)
            sums = (scores.view(-1, 1) + known).view(requests, -1)
            scores, best = largest(sums, min(self._beams, sums.shape[1]))
            parents = best // width
            chosen = likely[:, :width].reshape(requests, -1).gather(1, best)
            before = ids.gather(1, parents[:, :, None].expand(-1, -1, depth))
            ids = torch.cat([before, chosen[:, :, None]], dim=-1)
            first = torch.arange(requests, device=device)[:, None] * (len(states) // requests)
            states, tokens = states[(first + parents).flatten()], chosen.flatten()
        return ids
