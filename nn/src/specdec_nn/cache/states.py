"""States of recurrent and convolution layers, by request: snapshots that only committed rows change; it runs no layer.

A layer keeps of each request a *snapshot*, the state after the request's first `base` rows, and behind it a *log*:
what the layer was given at the rows that ran since and may yet be taken back. Where the next rows of the request begin
tells how many logged ones were accepted. Those run again, from the log, in front of the new ones: within the layer
alone, and in the same call. So a rejection costs no pass of its own, and no other layer ever sees a row twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray

Shape = tuple[int, ...]
# Columns of `StateStep.table`.
START, ROWS, SLOT, FRESH, PENDING, KEEP = range(6)
FIRST_SLOTS: Final = 4


@dataclass(slots=True, eq=False)
class StateStep:
    """What one forward does to the states of its segments, the same in every layer.

    A layer runs of each segment its pending rows, from the log, and then its new ones. Of all these the first `KEEP`
    stay: the snapshot becomes the state after them, and the others, which may be taken back, become the log.

    table     [S, 6] int64: first flat row, new rows, slot, 1 if the request begins here (its state is zero),
              pending rows, rows that stay (pending ones counted)
    log_rows  the most rows that a log holds afterwards
    """

    table: npt.NDArray[np.int64]
    log_rows: int


@dataclass(slots=True, eq=False)
class LayerState:
    """States of one layer; slots and rows behind those in use are without meaning.

    snapshot    [slots, *shape] float32
    logs        [slots, rows, *one of log_shapes] float32 each
    """

    snapshot: Tensor
    logs: tuple[Tensor, ...]
    shape: Shape
    log_shapes: tuple[Shape, ...]

    def memory_bytes(self) -> int:
        """Return the size of all tensors in bytes."""
        return sum(part.numel() * part.element_size() for part in (self.snapshot, *self.logs))


class StatePool:
    """Slots for the states of requests, in all layers. Layers are allocated at their first use."""

    def __init__(self, slots: int = FIRST_SLOTS) -> None:
        """Make room for so many requests at first; more get room when they come."""
        self._capacity = max(slots, 1)
        self._free: list[int] = list(range(self._capacity - 1, -1, -1))
        self._base: list[int] = [0] * self._capacity  # rows in the snapshot
        self._logged: list[int] = [0] * self._capacity  # rows in the log
        self._log_rows = 1  # of the longest log
        self._layers: dict[tuple[int, int], LayerState] = {}

    @property
    def slots_in_use(self) -> int:
        """Requests that hold a slot."""
        return self._capacity - len(self._free)

    def take(self) -> int:
        """Return a slot of its own for a request that begins."""
        if not self._free:
            self._free = list(range(2 * self._capacity - 1, self._capacity - 1, -1))
            for counts in (self._base, self._logged):
                counts.extend([0] * self._capacity)
            self._capacity *= 2
        slot = self._free.pop()
        self._base[slot] = self._logged[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def step(
        self,
        starts: Sequence[int],
        rows: Sequence[int],
        slots: Sequence[int],
        context: Sequence[int],
        certain: IntArray,
    ) -> StateStep:
        """Return what a forward over S segments does, and count it as done.

        starts   [S] first flat row of each segment, of `rows` [S] rows
        context  [S] rows of the request before them; the logged ones among these are accepted, or run in this round
        certain  [S] rows of the request that can no longer be taken back, from the first one on

        Raises ValueError for rows that begin where the state of their request cannot be had.
        """
        table = np.zeros((len(slots), 6), np.int64)
        for i, (slot, begin, count) in enumerate(zip(slots, context, rows, strict=True)):
            if begin == 0:
                self._base[slot] = self._logged[slot] = 0
            base, logged = self._base[slot], self._logged[slot]
            pending = begin - base
            if not 0 <= pending <= logged:
                message = (
                    f"rows begin behind {begin} others, but the recurrent state of their request is the one behind "
                    f"{base}, with {logged} rows logged since: rows before a snapshot cannot be taken back"
                )
                raise ValueError(message)
            keep = min(max(int(certain[i]) - base, 0), pending + count)
            table[i] = starts[i], count, slot, begin == 0, pending, keep
            self._base[slot], self._logged[slot] = base + keep, pending + count - keep
            self._log_rows = max(self._log_rows, self._logged[slot])
        return StateStep(table, self._log_rows)

    def layer(self, key: tuple[int, int], snapshot: Shape, logs: tuple[Shape, ...], device: torch.device) -> LayerState:
        """Return the states of a layer, with snapshots of the given shape and logs of rows of the given shapes.

        `key` is the layer's number, and that of the state among those of the layer. Raises ValueError if it was
        allocated for other shapes.
        """
        known = self._layers.get(key)
        if known is None:
            known = self._layers[key] = LayerState(
                torch.zeros((self._capacity, *snapshot), device=device),
                tuple(torch.zeros((self._capacity, self._log_rows, *row), device=device) for row in logs),
                snapshot,
                logs,
            )
        if (known.shape, known.log_shapes) != (snapshot, logs):
            message = f"state {key} is {known.shape} with logs of {known.log_shapes}, not {snapshot} and {logs}"
            raise ValueError(message)
        if len(known.snapshot) < self._capacity or known.logs[0].shape[1] < self._log_rows:
            self._grow(known)
        return known

    def _grow(self, layer: LayerState) -> None:
        """Give a layer as many slots and rows as there are by now."""
        parts = [layer.snapshot, *layer.logs]
        for i, part in enumerate(parts):
            size = (self._capacity, *part.shape[1:]) if i == 0 else (self._capacity, self._log_rows, *part.shape[2:])
            grown = part.new_zeros(size)
            grown[tuple(slice(0, length) for length in part.shape)] = part
            parts[i] = grown
        layer.snapshot, layer.logs = parts[0], tuple(parts[1:])

    def bytes_per_request(self, log_rows: int) -> int:
        """Return the bytes of a request's states in all layers allocated by now, with logs of so many rows."""
        size = 0
        for layer in self._layers.values():
            size += layer.snapshot[0].numel() * layer.snapshot.element_size()
            size += sum(log_rows * log[0, 0].numel() * log.element_size() for log in layer.logs)
        return size

    def memory_bytes(self) -> int:
        """Return the size of all allocated layers in bytes."""
        return sum(layer.memory_bytes() for layer in self._layers.values())
