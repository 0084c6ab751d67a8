"""The rows of one step at which a token is drawn: whose they are, and which have no distribution; no logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_core.draft import IntArray, Verdict
from specdec_engine.requests.request import Request, Work


@dataclass(slots=True)
class DrawRows:
    """R rows of n work items, in the order of the logits: of each item the row of its newest id, then of its drafts.

    works      n work items that want at least one row
    counts     [n] rows of each
    positions  [R] int32 position of each row's own id; the id drawn there stands at the next one
    dead       rows that have no distribution, each with the reason; what was drawn there must not be emitted
    finite     [R] bool whether the model gave a row a distribution, until `settle` has read it; None where all have one
    """

    works: Sequence[Work]
    counts: IntArray
    positions: IntArray
    dead: dict[int, str] = field(default_factory=dict)
    finite: Tensor | None = None

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

    def settle(self) -> None:
        """Read which rows the model gave no distribution, and add them to `dead`."""
        if self.finite is None:
            return
        for row in np.flatnonzero(~self.finite.cpu().numpy()).tolist():
            place = int(self.positions[row])
            self.dead[row] = f"the model's logits are not finite (NaN, +inf, or all -inf) after position {place}"
        self.finite = None

    def withhold(self, verdict: Verdict) -> Verdict:
        """Return a verdict that emits nothing from a dead row.

        An item that reaches one ends with the id before it, as if no more drafts had been accepted. Where that is the
        item's first row, its request gets an `error`, and what the verdict says of it is without meaning.
        """
        self.settle()
        for row in verdict.logits_row[verdict.emitted < 0].tolist():  # what a race without a candidate gives
            self.dead.setdefault(row, "no id has a probability above 0")
        if not self.dead:
            return verdict
        lengths = verdict.accepted.copy()
        ends = np.cumsum(verdict.accepted + 1)
        for item, (work, start, end) in enumerate(zip(self.works, ends - verdict.accepted - 1, ends, strict=True)):
            reached = [at for at, row in enumerate(verdict.logits_row[start:end].tolist()) if row in self.dead]
            if reached and reached[0] > 0:
                lengths[item] = reached[0] - 1
            elif reached:
                reason = self.dead[int(verdict.logits_row[start])]
                work.request.error = f"request {work.request.id}, output id {work.request.output_len}: {reason}"
        path = _places(verdict.accepted) < np.repeat(lengths, verdict.accepted)
        emitted = _places(verdict.accepted + 1) <= np.repeat(lengths, verdict.accepted + 1)
        return Verdict(lengths, verdict.path[path], verdict.emitted[emitted], verdict.logits_row[emitted])


def _places(counts: IntArray) -> IntArray:
    """Return 0 .. count - 1 for each count, one after the other."""
    starts: IntArray = np.cumsum(counts, dtype=np.int32) - counts
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat(starts, counts)
