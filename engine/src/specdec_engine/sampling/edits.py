"""Changes to single logits of many rows, collected on the host and made in a few operations; knows no parameters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_nn.device_copies import to_device

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Edits:
    """What is to be done to rows of logits [R, V], each row named by its index.

    Sums come first, then penalties, then everything that is forbidden: minus infinity stays what it is under both.
    """

    def __init__(self, vocab_size: int) -> None:
        """Begin with nothing to do."""
        self._vocab_size = vocab_size
        self._sums: list[tuple[Ids, Floats]] = []
        self._penalties: list[tuple[Ids, Floats, Floats, Floats]] = []
        self._forbidden: list[Ids] = []
        self._masks: list[tuple[int, int, Tensor]] = []

    def add(self, row: int, ids: Ids, values: Floats) -> None:
        """Add values to the logits of distinct ids."""
        self._sums.append((ids + row * self._vocab_size, values))

    def penalise(self, row: int, ids: Ids, repetition: np.float32, frequency: Floats, presence: Floats) -> None:
        """Divide the logits of distinct ids by `repetition` (multiply negative ones), then take two amounts away."""
        divisors = np.full(len(ids), repetition, np.float32)
        self._penalties.append((ids + row * self._vocab_size, divisors, frequency, presence))

    def forbid(self, row: int, ids: Ids) -> None:
        """Give ids no chance."""
        self._forbidden.append(ids + row * self._vocab_size)

    def forbid_masked(self, first: int, count: int, mask: Tensor) -> None:
        """Give the ids at which `mask` [V] is true no chance in `count` rows from `first` on."""
        self._masks.append((first, count, mask))

    def apply(self, logits: Tensor) -> None:
        """Write to contiguous float32 logits [R, V]. Each operation is rounded on its own, so rows are independent."""
        flat = logits.view(-1)
        if self._sums:
            index, values = (_joined(parts, flat) for parts in zip(*self._sums, strict=True))
            flat.index_add_(0, index, values)
        if self._penalties:
            index, divisors, frequency, presence = (_joined(p, flat) for p in zip(*self._penalties, strict=True))
            known = flat[index]
            known = torch.where(known > 0, known / divisors, known * divisors)
            flat.index_copy_(0, index, known - frequency - presence)
        if self._forbidden:
            flat.index_fill_(0, _joined(self._forbidden, flat), -torch.inf)
        for first, count, mask in self._masks:
            logits[first : first + count].masked_fill_(mask, -torch.inf)


def _joined(parts: tuple[Ids | Floats, ...] | list[Ids], like: Tensor) -> Tensor:
    return to_device(np.concatenate(parts), like.device)
