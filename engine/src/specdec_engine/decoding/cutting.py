"""Cutting drafts before the target runs them, at ids that a request cannot emit; knows rules as functions of a path.

A one-hot draft is a guess that says nothing about the target's draw, so an id that cannot be emitted is dropped. A soft
draft was drawn from a distribution q, and the verifier corrects for that: if such an id were dropped because of its
value, its place would be drawn from p and not from max(p - q, 0), and ids that the drafter likes would come too often.
So it stays, the target's p is 0 there, and only what stands behind it is cut. The same holds for a point mass that has
soft siblings: those may have been drawn without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specdec_core.draft import BoolArray, Draft, IntArray

# Of ids that would follow a request's known ones, how many from the first on it can emit.
Legal = Callable[[IntArray], int]


def cut(draft: Draft, legal: Sequence[Legal | None], *, exact: bool) -> Draft:
    """Return a host-form draft without what cannot be emitted; `legal` has one rule a row, None where all is legal.

    Without `exact` (the verifier is lossy, and might accept what has p = 0) soft ids are dropped as well.
    """
    lengths = list(draft.lengths or ())
    if all(rule is None or not length for rule, length in zip(legal, lengths, strict=True)):
        return draft
    mask = np.ones(len(draft.tokens), np.bool_)
    start = 0
    for rule, length in zip(legal, lengths, strict=True):
        if rule is not None and length:
            nodes = slice(start, start + length)
            parents = None if draft.parents is None else draft.parents[nodes]
            soft = np.zeros(length, np.bool_) if draft.q_row is None or not exact else draft.q_row[nodes] >= 0
            if parents is not None:
                soft = np.isin(parents, parents[soft])
            mask[nodes] = _kept(draft.tokens[nodes], parents, soft, rule)
        start += length
    return draft.keep(mask)


def _kept(tokens: IntArray, parents: IntArray | None, soft: BoolArray, legal: Legal) -> BoolArray:
    """Return for each node of one row whether it stays."""
    kept = np.zeros(len(tokens), np.bool_)
    for path in _paths(len(tokens), parents):
        count = legal(tokens[path])
        kept[path[:count]] = True
        if count < len(path) and soft[path[count]]:
            kept[path[count]] = True
    return kept


def _paths(length: int, parents: IntArray | None) -> list[IntArray]:
    """Return the nodes of each path from the newest id to a leaf."""
    if parents is None:
        return [np.arange(length, dtype=np.int32)]
    to: list[list[int]] = []
    for node, parent in enumerate(parents.tolist()):
        to.append([*(to[parent] if parent >= 0 else ()), node])
    inner = set(parents.tolist())
    return [np.array(path, np.int32) for node, path in enumerate(to) if node not in inner]
