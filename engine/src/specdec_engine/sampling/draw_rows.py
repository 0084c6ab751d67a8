"""The rows of one step at which a token is drawn: whose they are, and which have no distribution; no logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, IntArray, Verdict
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows

NO_ID = "no id has a probability above 0: the logits of the model, or those that parameters leave, are not finite"


@dataclass(slots=True)
class DrawRows:
    """R rows of n requests, in the order of the logits: of each item the row of its newest id, then of its drafts.

    items      the scheduled rows of n requests, each of which wants at least one row drawn
    counts     [n] rows of each
    positions  [R] int32 position of each row's own id; the id drawn there stands at the next one. Rows of a tree whose
               form is on a device have that of its newest id, until it is read
    dead       rows that have no distribution, each with the reason; what was drawn there must not be emitted
    finite     [R] bool whether the model gave a row a distribution, until `read_finite` has read it; None: all have one
    best       [R] int64 the id of the largest processed logit of each row, where that is known, else None
    """

    items: Sequence[ScheduledRows]
    counts: IntArray
    positions: IntArray
    dead: dict[int, str] = field(default_factory=dict)
    finite: Tensor | None = None
    best: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, items: Sequence[ScheduledRows]) -> DrawRows:
        """Lay the wanted rows of the items out in sequence."""
        rows = cls(items, np.array([item.wants for item in items], np.int32), np.empty(0, np.int32))
        rows.place()
        return rows

    def place(self) -> None:
        """Fill in `positions`, as far as the items know them."""
        positions = [item.positions[len(item.ids) - item.wants :] for item in self.items]
        self.positions = np.concatenate(positions) if positions else np.empty(0, np.int32)

    def __len__(self) -> int:
        """Return R."""
        return len(self.positions)

    @property
    def requests(self) -> list[Request]:
        """The request of each item."""
        return [item.request for item in self.items]

    @property
    def greedy(self) -> BoolArray:
        """Whether each request takes the most likely id, [n]."""
        return np.array([request.sampling_params.greedy for request in self.requests], np.bool_)

    @property
    def known(self) -> Tensor | None:
        """The ids drawn at all rows, [R] int64, if every request is greedy and its `best` are known; else None."""
        return torch.from_numpy(self.best) if self.best is not None and self.greedy.all() else None

    @property
    def starts(self) -> IntArray:
        """The first row of each item, [n]."""
        ends: IntArray = np.cumsum(self.counts, dtype=np.int32)
        return ends - self.counts

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat one value an item for each of its rows, [R]."""
        return np.repeat(values, self.counts)

    def read_finite(self, finite: BoolArray | None = None) -> None:
        """Add the rows that the model gave no distribution to `dead`; `finite` is what was read, None: read it."""
        if self.finite is None:
            return
        finite = self.finite.cpu().numpy() if finite is None else finite
        for row in np.flatnonzero(~finite).tolist():
            place = int(self.positions[row])
            self.dead[row] = f"the model's logits are not finite (NaN, +inf, or all -inf) after position {place}"
        self.finite = None

    def withhold(self, verdict: Verdict) -> Verdict:
        """Return a verdict that emits nothing from a dead row.

        An item that reaches one ends with the id before it, as if no more drafts had been accepted. Where that is the
        item's first row, its request gets an `error`, and what the verdict says of it is without meaning.
        """
        self.read_finite()
        for row in verdict.logits_row[verdict.emitted < 0].tolist():  # what a race without a candidate gives
            self.dead.setdefault(row, NO_ID)
        if not self.dead:
            return verdict
        lengths = verdict.accepted.copy()
        ends = np.cumsum(verdict.accepted + 1)
        for index, (item, start, end) in enumerate(zip(self.items, ends - verdict.accepted - 1, ends, strict=True)):
            reached = [at for at, row in enumerate(verdict.logits_row[start:end].tolist()) if row in self.dead]
            if reached and reached[0] > 0:
                lengths[index] = reached[0] - 1
            elif reached:
                reason = self.dead[int(verdict.logits_row[start])]
                item.request.error = f"request {item.request.id}, output id {item.request.output_len}: {reason}"
        path = _places(verdict.accepted) < np.repeat(lengths, verdict.accepted)
        emitted = _places(verdict.accepted + 1) <= np.repeat(lengths, verdict.accepted + 1)
        return Verdict(lengths, verdict.path[path], verdict.emitted[emitted], verdict.logits_row[emitted])

    def hand_out(self, verdict: Verdict) -> None:
        """Give each item what a verdict says of it: accepted drafts, emitted ids and their rows."""
        path = start = 0
        for item, count in zip(self.items, verdict.accepted.tolist(), strict=True):
            end = start + count + 1
            item.accepted = verdict.path[path : path + count]
            item.emitted, item.logits_rows = verdict.emitted[start:end], verdict.logits_row[start:end]
            path, start = path + count, end


def _places(counts: IntArray) -> IntArray:
    """Return 0 .. count - 1 for each count, in sequence."""
    starts: IntArray = np.cumsum(counts, dtype=np.int32) - counts
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat(starts, counts)
