"""Goes through a static tree level by level, and picks the children of each node; what makes logits is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.token_tree import TokenTree
from specdec_nn.device_copies import columns_of, side_by_side, to_device
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
    return to_device(np.array(ids, np.int64), drafts.states.device)


def walk(tree: TokenTree, drafts: Round, picks: Picks, logits: LevelLogits) -> Draft:
    """Return the tree for each request, cut to the first nodes where the limit is smaller.

    Drawn children of a node come from one distribution without replacement, in the order of their ranks.
    """
    size = min(len(tree), int(drafts.limits.max()))
    columns: list[tuple[Tensor, Any]] = []  # ids and rows of distributions of the nodes in their order, level by level
    level = Level(0, (-1,), [0], newest_ids(drafts)[:, None])
    while level.nodes:
        width = max(len(tree.children[node]) for node in level.nodes)
        ids, rows = picks.children(logits(level), len(level.nodes), width, level.depth)
        made = [child for node in level.nodes for child in tree.children[node]]
        places = [at * width + rank for at, node in enumerate(level.nodes) for rank in range(len(tree.children[node]))]
        ids = columns_of(ids.flatten(1), places)
        columns.append((ids, columns_of(rows.reshape(len(rows), -1), places)))
        below = tuple(node for node in tree.level(level.depth + 1) if tree.children[node][0] < size)
        parents = [level.nodes.index(tree.parents[node]) for node in below]
        level = Level(level.depth + 1, below, parents, columns_of(ids, [node - made[0] for node in below]))
    tokens, q_row = (side_by_side(part)[:, :size] for part in zip(*columns, strict=True))
    return picks.tree(np.minimum(drafts.limits, size), tokens, np.array(tree.parents[:size], np.int32), q_row)
