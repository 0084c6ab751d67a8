"""Repetition, frequency and presence penalties: what a sample has said so far, advanced by committed ids only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_core.draft import IntArray
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.edits import Edits
from specdec_engine.sampling.stages import Stage
from specdec_engine.sampling_params import SamplingParams


class Penalties(Stage):
    """The distinct ids of a sample with their counts; a row sees those before it, the drafts on its path included.

    The repetition penalty counts ids of the prompt too, the others ids of the output only.
    """

    def __init__(self, params: SamplingParams, prompt: IntArray) -> None:
        """Begin with the prompt's ids, each with count 0."""
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        known = np.unique(prompt) if params.repetition_penalty != 1 else prompt[:0]
        self._slots = {token: slot for slot, token in enumerate(known.tolist())}
        self._size = len(known)
        self._ids = np.zeros(2 * self._size + 64, np.int64)
        self._ids[: self._size] = known
        self._counts = np.zeros(len(self._ids), np.float32)

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether parameters ask for any penalty."""
        return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0

    def edit(self, item: ScheduledRows, first: int, edits: Edits) -> None:
        """Note the penalties of every row."""
        committed = self._size
        for row in range(first, first + item.wants):
            path = item.path(row - first).tolist()
            self.commit(path)
            counts = self._counts[: self._size]
            edits.penalise(
                row,
                self._ids[: self._size],
                self._repetition,
                self._frequency * counts,
                self._presence * (counts > 0),
            )
            self._take_back(path, committed)

    def commit(self, ids: Sequence[int]) -> None:
        """Count ids."""
        for token in ids:
            slot = self._slots.setdefault(token, self._size)
            if slot == self._size:
                self._grow()
                self._ids[slot], self._counts[slot] = token, 0
                self._size += 1
            self._counts[slot] += 1

    def _grow(self) -> None:
        if self._size == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))

    def _take_back(self, ids: Sequence[int], size: int) -> None:
        """Undo the last `commit`; before it, `size` ids were known."""
        for token in ids:
            self._counts[self._slots[token]] -= 1
        for token in self._ids[size : self._size].tolist():
            del self._slots[token]
        self._size = size
