"""The definitions of the ops of tree drafting, in torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_nn.drafters.draft_sampler import largest


def tree_expand(logits: Tensor, scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest children of the nodes of one level, and their cumulative scores.

    logits [n, V_d] float32, scores [n] float32: sums of log-probabilities on the way to each node. Returns ids
    [n, top_k] int64 by descending logit, the lowest id first among equals, and scores [n, top_k] float32: the node's
    plus the child's log-probability. Source: arXiv 2406.16858, section 4.1.
    """
    values, ids = largest(logits, top_k)
    return ids, scores[:, None] + (values - torch.logsumexp(logits, dim=-1, keepdim=True))


def draft_rows(states: Tensor, parents: Tensor, tokens: Tensor, starts: Tensor, depth: int) -> tuple[Tensor, ...]:
    """Return the head's input rows for one level of drafts: features [A * f, H], tokens and positions [A * f].

    states [A, p, H] are the features of the level above, parents [A, f] say which of them each node comes from,
    tokens [A, f] are the nodes' ids, starts [A] the position of the newest id of each request. All rows of a level
    stand at the same position, starts + depth. Source: arXiv 2406.16858, section 4.1.
    """
    index = parents[:, :, None].expand(-1, -1, states.shape[2])
    features = torch.gather(states, 1, index).flatten(0, 1)
    positions = (starts[:, None] + depth).expand(tokens.shape)
    return features, tokens.flatten(), positions.flatten()
