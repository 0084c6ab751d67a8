"""Token trees on their way into a step: how deep nodes are, which can run, and what the target needs of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Draft, IntArray
from specdec_engine.requests.scheduled_rows import Tree

AncestorBits = Callable[[Tensor, Sequence[int]], Tensor]


def depths(draft: Draft) -> IntArray:
    """Return the depth of each node of a host-form draft, flat like its tokens; 1 for a child of the newest id."""
    found: list[int] = []
    for start, end in _spans(draft):
        if draft.parents is None:
            found.extend(range(1, end - start + 1))
            continue
        for parent in draft.parents[start:end].tolist():
            found.append(1 if parent < 0 else found[start + parent] + 1)
    return np.array(found, np.int32)


def within(draft: Draft, deepest: Sequence[int], most: Sequence[int]) -> Draft:
    """Return a host-form draft without nodes deeper than `deepest` of their row, and with its first `most` nodes only.

    The depth of a node is a matter of positions, which the context ends; the number of nodes one of rows in the KV
    arena, where each takes one.
    """
    lengths = list(draft.lengths or ())
    if all(length <= min(limits) for length, *limits in zip(lengths, deepest, most, strict=True)):
        return draft
    index = np.concatenate([np.arange(length) for length in lengths])
    return draft.keep((depths(draft) <= np.repeat(deepest, lengths)) & (index < np.repeat(most, lengths)))


def split(draft: Draft, ancestor_bits: AncestorBits) -> list[Tree | None]:
    """Return the tree of each row of a host-form draft, None where a row is a chain."""
    lengths = list(draft.lengths or ())
    parents = draft.parents
    if parents is None:
        return [None] * len(lengths)
    rows = [parents[start:end] for start, end in _spans(draft)]
    trees = [bool((row != np.arange(-1, len(row) - 1)).any()) for row in rows]
    if not any(trees):
        return [None] * len(lengths)
    bits = ancestor_bits(torch.from_numpy(np.ascontiguousarray(parents, np.int32)), lengths).numpy()
    ends = np.cumsum(np.add(lengths, 1)).tolist()
    return [
        (row, bits[end - len(row) - 1 : end]) if tree else None
        for row, tree, end in zip(rows, trees, ends, strict=True)
    ]


def _spans(draft: Draft) -> list[tuple[int, int]]:
    return list(itertools.pairwise(itertools.accumulate(draft.lengths or (), initial=0)))
