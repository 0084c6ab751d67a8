"""The arguments of a whole verification on its device, by one copy; knows drafts and their places, and no rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec_nn.device_copies import to_device
from specdec_plugin_verifiers.tree import Forest, Places
from specdec_plugin_verifiers.trial import Trial


@dataclass(slots=True)
class Packed:
    """The drafts and the noise of a call on the device of the logits, integers. R rows, N nodes, n trees.

    rows    [7, R] int64, the columns of each logits row in this order:
            key, position, sequence index  of its noise
            greedy   1 where the request is greedy
            above    the row of its node's parent, counted from the tree's first; -1 for a tree's newest id
            first    where its children begin in `kids`
            count    how many they are
    kids    [N] int64, nodes, family after family, each in the order of testing
    starts  [n + 1] int64, first row of each tree, and R
    nodes   [n] int64, index of each tree's first node
    tokens  [N] ids of the nodes
    distributions    [N] the row of q that each was drawn from, -1 = a point mass
    most    rows of the largest tree
    depth   nodes on the longest path
    """

    rows: Tensor
    kids: Tensor
    starts: Tensor
    nodes: Tensor
    tokens: Tensor
    distributions: Tensor
    most: int
    depth: int


def pack(trial: Trial) -> Packed:
    """Lay the arguments of a call out, and copy them; ids that are on the device stay where they are.

    Trees whose form is there (`Trial.parents`) are laid out as if all nodes were children of the newest id: positions,
    `above`, `first`, `count` and `kids` are still to be filled in. Their depth is that of a chain, the most it can be.
    """
    forest, noise, rows = trial.forest, trial.noise, len(trial.logits)
    starts = np.append(forest.starts, rows)
    own = (noise.keys, noise.positions, noise.seq_index, trial.greedy[trial.owners], *_places(forest, rows))
    table = np.stack([np.asarray(column).astype(np.int64) for column in own])
    kids = np.argsort(forest.parent_row, kind="stable")
    parts = [table.reshape(-1), kids, starts, forest.first]
    given = (trial.tokens, trial.q_rows)
    parts += [known for known, there in zip((forest.tokens, forest.q_row), given, strict=True) if there is None]
    flat = to_device(np.concatenate(parts), trial.logits.device)
    fields = list(torch.split(flat, [len(part) for part in parts]))
    rest = iter(fields[4:])
    tokens, distributions = (next(rest) if there is None else there for there in given)
    most = int(np.diff(starts).max(initial=1))
    depth = most - 1 if forest.chains or trial.parents is not None else forest.depth
    rows_there, kids_there, starts_there, nodes = fields[0].view(table.shape), *fields[1:4]
    return Packed(rows_there, kids_there, starts_there, nodes, tokens, distributions, most, depth)


def _places(forest: Forest, rows: int) -> tuple[Places, ...]:
    """Return above, first and count, each [R]."""
    above = np.full(rows, -1, np.int64)
    start = np.repeat(forest.starts, np.diff(np.append(forest.starts, rows)))
    above[forest.own_row] = forest.parent_row - start[forest.own_row]
    count = np.bincount(forest.parent_row, minlength=rows).astype(np.int64)
    return above, np.cumsum(count) - count, count
