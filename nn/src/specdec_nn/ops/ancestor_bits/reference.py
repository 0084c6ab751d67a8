"""Token trees as bits: which earlier keys of its own tree a row sees; it does not know attention, pages or requests.

The rows of a tree are the newest id and then its nodes in order, parents before children. Bit b of a row means that
row b of the tree is the row itself or an ancestor of it: the tree mask of SpecInfer (arXiv 2305.09781, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray

WORD = 64  # bits an int64


def words_of(lengths: Sequence[int]) -> int:
    """Return how many words a row needs for trees of these numbers of nodes."""
    return (max(lengths, default=0) + WORD) // WORD


def ancestor_bits_reference(parents: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the bits of the rows of n trees, [sum(1 + lengths), words] int64; the definition of the op.

    parents  [sum(lengths)] int32, the index of each node's parent within its own tree, -1 = the newest id
    lengths  n host ints, nodes of each tree; 0 is a tree of the newest id alone

    Words are `words_of(lengths)`; bit b stands in word b // 64 at 2 ** (b % 64).
    """
    device = parents.device
    counts = torch.tensor(lengths, dtype=torch.int64, device=device)
    total = len(parents) + len(lengths)
    first = (torch.cumsum(counts + 1, 0) - counts - 1).repeat_interleave(counts + 1)  # row of each row's newest id
    above = torch.full((total,), -1, dtype=torch.int64, device=device)  # row within the tree, of the parent
    nodes = torch.arange(total, device=device) != first
    above[nodes] = parents.long() + 1
    bits = torch.zeros((total, words_of(lengths)), dtype=torch.int64, device=device)
    rows = torch.arange(total, device=device)
    bit = rows - first
    while len(rows):
        bits[rows, bit // WORD] |= torch.ones_like(bit) << (bit % WORD)
        bit = above[first[rows] + bit]
        rows, bit = rows[bit >= 0], bit[bit >= 0]
    return bits


def ancestor_lists(bits: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (ends [R + 1], ancestors): row r of bits [R, words] has ancestors[ends[r] : ends[r + 1]], ascending.

    Ascending order is the order of the path, itself last.
    """
    each = np.unpackbits(bits.astype("<i8", copy=False).view(np.uint8), axis=1, bitorder="little")
    rows, ancestors = np.nonzero(each)
    ends = np.zeros(len(bits) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(bits)), out=ends[1:])
    return ends, ancestors


def depths(bits: npt.NDArray[np.int64]) -> IntArray:
    """Return the depth of each row, [R] int32: how many ancestors it has; 0 for the newest id."""
    ends, _ = ancestor_lists(bits)
    levels: IntArray = (np.diff(ends) - 1).astype(np.int32)
    return levels


def depths_there(bits: Tensor) -> Tensor:
    """Return what `depths` does, [R] int64 where the bits are, without a wait for their device."""
    each = bits[:, :, None] >> torch.arange(WORD, device=bits.device)
    return (each & 1).sum((1, 2)) - 1
