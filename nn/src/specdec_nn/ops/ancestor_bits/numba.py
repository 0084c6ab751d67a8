"""The op `ancestor_bits` on a CPU: one pass over the nodes, each taking its parent's bits and its own."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_nn.ops.ancestor_bits.reference import WORD, ancestor_bits_reference, words_of
from specdec_nn.ops.cpu.jit import njit


@njit(nogil=True)
def _fill(parents: Any, lengths: Any, bits: Any) -> None:
    node = row = 0
    for n in range(len(lengths)):
        first = row
        bits[first, 0] = 1
        for b in range(1, lengths[n] + 1):
            row = first + b
            above = first + parents[node] + 1
            for w in range(bits.shape[1]):
                bits[row, w] = bits[above, w]
            bits[row, b // WORD] |= np.int64(1) << np.int64(b % WORD)
            node += 1
        row += 1


def ancestor_bits(parents: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the bits of the rows of n trees; see `ancestor_bits_reference` for arguments, shapes and meaning."""
    if parents.device.type != "cpu":
        return ancestor_bits_reference(parents, lengths)
    bits = np.zeros((len(parents) + len(lengths), words_of(lengths)), np.int64)
    _fill(parents.to(torch.int64).numpy(), np.array(lengths, np.int64), bits)
    return torch.from_numpy(bits)
