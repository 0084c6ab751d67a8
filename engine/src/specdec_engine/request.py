"""The state of one request while it lives: ids, how far the target has run, pages, what its proposer was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from specdec.draft import IntArray
from specdec.metrics import SpecMetrics
from specdec.nn.arena import Segment
from specdec_engine.outputs import StopKind
from specdec_engine.sampling_params import SamplingParams


@dataclass(slots=True)
class PendingRows:
    """Committed rows not yet delivered to the proposer: the first position and the states from there on, [m, ...]."""

    start: int
    count: int
    hidden: Tensor | None
    aux: Tensor | None


class Request:
    """One sample of a prompt; it is the `RequestView` that proposers see.

    `run_len` positions have been run by the target and kept. After the prompt, exactly one known id (the newest) has
    not been run, unless the request comes back from a preemption.
    """

    def __init__(
        self, request_id: str, seq_index: int, prompt: IntArray, params: SamplingParams, key: int, arrival: int
    ) -> None:
        """Copy the prompt into a buffer that grows by doubling."""
        self.id = request_id
        self.seq_index = seq_index
        self.prompt_len = len(prompt)
        self.sampling_params = params
        self.extra: Any = None
        self.key = key
        self.arrival = arrival
        self.run_len = 0
        self.segment = Segment()
        self.metrics = SpecMetrics()
        self.finish_reason: StopKind | None = None
        self.stop_reason: int | None = None
        self.started = False  # the proposer knows the request
        self.retired = False  # no speculation until the request ends
        self.next_row = 0  # the position after the last row delivered to the proposer
        self.pending: list[PendingRows] = []
        self._buffer = np.empty(max(64, 2 * self.prompt_len), np.int32)
        self._buffer[: self.prompt_len] = prompt
        self._length = self.prompt_len
        self._view = self._make_view()

    def __len__(self) -> int:
        """Return the number of known ids."""
        return self._length

    def _make_view(self) -> IntArray:
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    @property
    def tokens(self) -> IntArray:
        """All known ids, read-only."""
        return self._view

    @property
    def output_len(self) -> int:
        """Number of ids emitted so far."""
        return self._length - self.prompt_len

    @property
    def output_ids(self) -> list[int]:
        """Ids emitted so far."""
        ids: list[int] = self._buffer[self.prompt_len : self._length].tolist()
        return ids

    @property
    def newest_known(self) -> bool:
        """Whether all known ids but the newest, sampled one have been run."""
        return self.run_len == self._length - 1 and self._length > self.prompt_len

    @property
    def finished(self) -> bool:
        """Whether the request has ended."""
        return self.finish_reason is not None

    def append(self, ids: IntArray) -> None:
        """Add emitted ids."""
        end = self._length + len(ids)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer)), np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : end] = ids
        self._length = end
        self._view = self._make_view()


@dataclass(slots=True, eq=False)
class Work:
    """Rows of one request in one step: `ids` at positions start .. start + len(ids) - 1.

    prompt     a piece of the prompt (or, after a preemption, of ids to be run again); False for decode rows
    num_draft  how many of the ids, at the end, are drafts
    wants      how many rows at the end need logits: 0 inside a prompt, else 1 + num_draft
    """

    request: Request
    start: int
    ids: IntArray
    prompt: bool
    num_draft: int = 0
    wants: int = 0

    @property
    def positions(self) -> IntArray:
        """Position of each id, [len(ids)] int32."""
        return np.arange(self.start, self.start + len(self.ids), dtype=np.int32)

    def path(self, row: int) -> IntArray:
        """Return the drafts from after the newest id up to wanted row `row`, its own included; none for row 0."""
        first = len(self.ids) - self.num_draft
        return self.ids[first : first + row]
