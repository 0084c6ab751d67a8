"""For which length of text each row of a request is turned, where rotary tables depend on it; knows no tensors.

The rule looks at a request's own ids alone, so no neighbour, preemption or rejected draft changes a result. Why it is
what it is: docs/engine.md, "Rotary tables that depend on the length".
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows


class Tables(Protocol):
    """What is read of `specdec_nn.hf.row_tables.RowTables`."""

    @property
    def kind(self) -> str:
        """The rotary type."""

    @property
    def switch(self) -> int:
        """The largest length that has the first table."""


class RopeLengths:
    """The rule of one target.

    With `longrope`, all rows of a text are of its own length: up to the switch one table, above it the other, and a
    request that grows beyond it runs its known ids again. With `dynamic`, a row of the prompt is of the prompt's
    length, and a later one of the length up to itself; keys that were written stay.
    """

    def __init__(self, tables: Tables) -> None:
        """Take kind and switch."""
        self._renewed = tables.kind == "longrope"
        self._switch = tables.switch

    @classmethod
    def of(cls, tables: Tables | None, longest: int) -> RopeLengths | None:
        """Return the rule for texts of up to `longest` ids, None where they all have the same tables."""
        return None if tables is None or longest <= tables.switch else cls(tables)

    def table(self, request: Request) -> int:
        """Return a number that is equal for requests whose equal ids have equal keys and values."""
        if self._renewed:
            return int(len(request) > self._switch)
        return request.prompt_len if request.prompt_len > self._switch else 0

    def of_rows(self, item: ScheduledRows) -> npt.NDArray[np.int64]:
        """Return the length of text that each row of an item is turned for, [len(item.ids)]."""
        if self._renewed:
            return np.full(len(item.ids), len(item.request), np.int64)
        return np.maximum(item.positions.astype(np.int64) + 1, item.request.prompt_len)

    def room(self, request: Request) -> int | None:
        """Return how many drafts may follow each other before other tables are needed, None for any number."""
        left = self._switch - len(request)
        return left if self._renewed and left >= 0 else None
