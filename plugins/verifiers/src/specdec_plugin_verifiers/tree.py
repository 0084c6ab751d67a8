"""Drafts as trees over rows of logits, chains being trees with one child a node: ids and places, no probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specdec_core.draft import Draft, IntArray, Verdict

Places = npt.NDArray[np.int64]


@dataclass(slots=True)
class Families:
    """Nodes with their children in order; C is the largest number of children among them.

    nodes   [A, C] int64 children, as indices into the draft's flat arrays; -1 = none
    tokens  [A, C] int64 their ids; -1 = none
    soft    [A, C] bool: drawn from the node's distribution; else a point mass
    q_row   [A] int64 the node's distribution; -1 = none
    """

    nodes: Places
    tokens: Places
    soft: npt.NDArray[np.bool_]
    q_row: Places


@dataclass(slots=True)
class Forest:
    """The drafts of n batch rows, N nodes; R = N + n rows of logits.

    starts        [n] logits row of each batch row's newest id, which is the root
    first         [n] index of each batch row's first node
    tokens        [N] ids
    own_row       [N] logits row of each node
    parent_row    [N] logits row of the node's parent
    q_row         [N] distribution of each node; -1 = a point mass
    first_child   [R] node, -1 = none
    next_sibling  [N] node, -1 = none
    chains        every node has one child at most
    """

    starts: Places
    first: Places
    tokens: Places
    own_row: Places
    parent_row: Places
    q_row: Places
    first_child: Places
    next_sibling: Places
    chains: bool

    @classmethod
    def of(cls, draft: Draft) -> Forest:
        """Read a draft in host form."""
        lengths = np.asarray(draft.lengths, np.int64)
        first = np.cumsum(lengths) - lengths
        starts = first + np.arange(len(lengths))
        count = len(draft.tokens)
        root = np.repeat(starts, lengths)
        own_row = np.arange(count) + 1 + np.repeat(np.arange(len(lengths)), lengths)
        parent_row = own_row - 1 if draft.parents is None else root + 1 + draft.parents.astype(np.int64)
        first_child = np.full(count + len(lengths), -1, np.int64)
        next_sibling = np.full(count, -1, np.int64)
        if draft.parents is None:
            first_child[parent_row] = np.arange(count)
        else:
            order = np.argsort(parent_row, kind="stable")
            same = parent_row[order[1:]] == parent_row[order[:-1]]
            next_sibling[order[:-1][same]] = order[1:][same]
            heads = order[np.concatenate([np.ones(min(count, 1), np.bool_), ~same])]
            first_child[parent_row[heads]] = heads
        q_row = np.full(count, -1, np.int64) if draft.q_row is None else draft.q_row.astype(np.int64)
        tokens = draft.tokens.astype(np.int64)
        chains = draft.parents is None
        return cls(starts, first, tokens, own_row, parent_row, q_row, first_child, next_sibling, chains)

    @property
    def widest(self) -> int:
        """The largest number of children of a node."""
        return int(np.bincount(self.parent_row).max(initial=0)) if len(self.tokens) else 0

    @property
    def depth(self) -> int:
        """The number of nodes on the longest path."""
        return int(self.depths.max(initial=0))

    @property
    def depths(self) -> IntArray:
        """How many nodes are on the path to each logits row, [R] int32; 0 for a newest id."""
        depths, reached = np.zeros(len(self.first_child), np.int32), np.zeros(len(self.first_child), np.bool_)
        reached[self.starts] = True
        while (nodes := reached[self.parent_row]).any():
            reached = np.zeros_like(reached)
            reached[self.own_row[nodes]] = True
            depths[self.own_row[nodes]] = depths[self.parent_row[nodes]] + 1
        return depths

    def families(self, rows: Places) -> Families:
        """Return the children of the nodes of some logits rows."""
        columns = [self.first_child[rows]]
        while not self.chains and (columns[-1] >= 0).any():
            columns.append(np.where(columns[-1] >= 0, self.next_sibling[columns[-1]], -1))
        nodes = np.stack(columns[:-1] if len(columns) > 1 else columns, 1)
        there = nodes >= 0
        if not len(self.tokens):
            return Families(nodes, nodes, there, np.full(len(rows), -1, np.int64))
        q_row = np.where(there, self.q_row[nodes], -1)
        return Families(nodes, np.where(there, self.tokens[nodes], -1), q_row >= 0, q_row.max(1))


def verdict(forest: Forest, path: Places, stops: Places, last: Places) -> Verdict:
    """Return the verdict for n accepted paths of nodes, [n, depth] with -1 after the end of each.

    `stops` [n] are the logits rows where the paths end, and `last` [n] the ids drawn there.
    """
    taken = path >= 0
    accepted: IntArray = taken.sum(1, dtype=np.int32)
    flat = path[taken]
    ends = np.cumsum(accepted + 1) - 1
    emitted, rows = (np.empty(len(flat) + len(stops), np.int32) for _ in range(2))
    drafted = np.ones(len(emitted), np.bool_)
    drafted[ends] = False
    emitted[drafted], emitted[ends] = forest.tokens[flat], last
    rows[drafted], rows[ends] = forest.parent_row[flat], stops
    own: IntArray = (flat - np.repeat(forest.first, accepted)).astype(np.int32)
    return Verdict(accepted, own, emitted, rows)
