"""Goes through a static tree level by level, and picks the children of each node; what makes logits is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.token_tree import TokenTree
from specdec_nn.drafters.draft_sampler import Picks
from specdec_nn.drafters.hidden_state import Round


@dataclass(slots=True)
class Level:
    """The nodes of one depth that have children, for every request of a round.

    depth    0: the newest ids alone
    nodes    [f] their numbers in the tree, -1 at depth 0
    parents  [f] places of their parents among the nodes of the level above, 0 at depth 0
    tokens   [A, f] int64 their target ids
    """

    depth: int
    nodes: tuple[int, ...]
    parents: list[int]
    tokens: Tensor


# Returns draft logits [A * f, V_d] of a level's nodes, those of a request one after the other. Levels come in order.
LevelLogits = Callable[[Level], Tensor]


def newest_ids(drafts: Round) -> Tensor:
    """Return the newest id of each request, [A] int64."""
    ids = [int(drafts.batch.request(i).tokens[-1]) for i in drafts.index.tolist()]
    return torch.tensor(ids, dtype=torch.int64, device=drafts.states.device)


def walk(tree: TokenTree, drafts: Round, picks: Picks, logits: LevelLogits) -> Draft:
    """Return the tree for each request, cut to the first nodes where the limit is smaller.

    Drawn children of a node come from one distribution without replacement, in the order of their ranks.
    """
    requests, device = len(drafts.names), drafts.states.device
    size = min(len(tree), int(drafts.limits.max()))
    tokens = torch.zeros((requests, len(tree)), dtype=torch.int64, device=device)
    q_row = np.full((requests, len(tree)), -1, np.int32)
    level = Level(0, (-1,), [0], newest_ids(drafts)[:, None])
    while level.nodes:
        width = max(len(tree.children[node]) for node in level.nodes)
        ids, rows = picks.children(logits(level), len(level.nodes), width, level.depth)
        for at, node in enumerate(level.nodes):
            children = list(tree.children[node])
            tokens[:, children] = ids[:, at, : len(children)]
            q_row[:, children] = rows[:, at, : len(children)]
        below = tuple(node for node in tree.level(level.depth + 1) if tree.children[node][0] < size)
        parents = [level.nodes.index(tree.parents[node]) for node in below]
        level = Level(level.depth + 1, below, parents, tokens[:, list(below)])
    lengths = np.minimum(drafts.limits, len(tree))
    taken = np.arange(len(tree))[None, :] < lengths[:, None]
    above = np.broadcast_to(np.array(tree.parents, np.int32), taken.shape)
    return picks.tree(lengths, tokens.cpu().numpy().astype(np.int32)[taken], above[taken], q_row[taken])
