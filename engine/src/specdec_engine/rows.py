"""The rows of one step at which a token is drawn: whose they are and which drafts stand before each; no logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec.draft import IntArray
from specdec_engine.request import Request, Work


@dataclass(slots=True)
class DrawRows:
    """R rows of n work items, in the order of the logits: of each item the row of its newest id, then of its drafts.

    works      n work items that want at least one row
    counts     [n] rows of each
    positions  [R] int32 position of each row's own id; the id drawn there stands at the next one
    """

    works: Sequence[Work]
    counts: IntArray
    positions: IntArray

    @classmethod
    def of(cls, works: Sequence[Work]) -> DrawRows:
        """Lay the wanted rows of the work items out one after the other."""
        counts = np.array([work.wants for work in works], np.int32)
        positions = [work.positions[len(work.ids) - work.wants :] for work in works]
        return cls(works, counts, np.concatenate(positions) if positions else np.empty(0, np.int32))

    def __len__(self) -> int:
        """Return R."""
        return len(self.positions)

    @property
    def requests(self) -> list[Request]:
        """The request of each work item."""
        return [work.request for work in self.works]

    @property
    def starts(self) -> IntArray:
        """The first row of each work item, [n]."""
        ends: IntArray = np.cumsum(self.counts, dtype=np.int32)
        return ends - self.counts

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat one value an item for each of its rows, [R]."""
        return np.repeat(values, self.counts)
