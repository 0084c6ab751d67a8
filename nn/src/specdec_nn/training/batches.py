"""Requests packed into batches of one shape, in an order that a seed fixes; it knows no head and reads no files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from specdec_core.training import TrainingBatch, TrainingRequest

OPEN_LANES = 16  # lanes that are filled at one time


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows of one request.

    request  its number
    start    the first of the rows
    rows     how many they are, at least 2
    """

    request: int
    start: int
    rows: int


Lane = list[Window]


def windows(lengths: Sequence[int], width: int) -> list[Window]:
    """Return the windows of at most `width` rows that requests of these lengths are cut into.

    Neighbouring windows share a row: the last of the one is only read as what follows. Requests of one id give none.
    """
    found = []
    for request, length in enumerate(lengths):
        start = 0
        while length - start >= 2:
            rows = min(width, length - start)
            found.append(Window(request, start, rows))
            start += rows - 1
    return found


def lanes(ordered: Sequence[Window], width: int) -> Iterator[Lane]:
    """Yield lanes of at most `width` rows; each window goes into the first open lane that has room."""
    open_lanes: list[tuple[int, Lane]] = []
    for window in ordered:
        at = next((i for i, (used, _) in enumerate(open_lanes) if used + window.rows <= width), None)
        if at is None:
            if len(open_lanes) == OPEN_LANES:
                fullest = max(range(OPEN_LANES), key=lambda i: open_lanes[i][0])
                yield open_lanes.pop(fullest)[1]
            open_lanes.append((window.rows, [window]))
        else:
            used, lane = open_lanes[at]
            lane.append(window)
            open_lanes[at] = (used + window.rows, lane)
    yield from (lane for _, lane in open_lanes)


class Packing:
    """The batches of each pass over some requests: `size` lanes of `width` rows each."""

    def __init__(self, requests: Sequence[TrainingRequest], size: int, width: int) -> None:
        """Cut the requests; their states are not touched."""
        self._requests, self._size, self._width = requests, size, width
        self._windows = windows([len(request.ids) for request in requests], width)

    def epoch(self, seed: int | None, number: int = 0) -> list[list[Lane]]:
        """Return the lanes of each batch of a pass, in an order drawn from seed and number; as they come without seed.

        The last batch may have fewer lanes.
        """
        order = list(range(len(self._windows)))
        if seed is not None:
            np.random.default_rng([seed, number]).shuffle(order)
        found = list(lanes([self._windows[i] for i in order], self._width))
        return [found[i : i + self._size] for i in range(0, len(found), self._size)]

    def batch(self, chosen: Sequence[Lane]) -> TrainingBatch:
        """Return the batch of some lanes, whose states are read now."""
        first = self._requests[chosen[0][0].request]
        shape = (self._size, self._width)
        batch = TrainingBatch(
            ids=torch.zeros(shape, dtype=torch.int64),
            positions=torch.zeros(shape, dtype=torch.int64),
            request=torch.full(shape, -1, dtype=torch.int64),
            written=torch.zeros(shape, dtype=torch.bool),
            last=first.last.new_zeros(*shape, first.last.shape[1]),
            aux=first.aux.new_zeros(*shape, first.aux.shape[1]),
        )
        number = 0
        for lane, windows_ in enumerate(chosen):
            at = 0
            for window in windows_:
                self._fill(batch, (lane, slice(at, at + window.rows)), window, number)
                at, number = at + window.rows, number + 1
        return batch

    def _fill(self, batch: TrainingBatch, place: tuple[int, slice], window: Window, number: int) -> None:
        request, rows = self._requests[window.request], slice(window.start, window.start + window.rows)
        positions = torch.arange(window.start, window.start + window.rows)
        batch.ids[place] = request.ids[rows]
        batch.positions[place] = positions
        batch.request[place] = number
        batch.written[place] = positions >= request.prompt
        batch.last[place] = request.last[rows]
        batch.aux[place] = request.aux[rows]


def ids_in(chosen: Sequence[Lane]) -> int:
    """Return how many ids the lanes of a batch hold."""
    return sum(window.rows for lane in chosen for window in lane)


def moved(batch: TrainingBatch, device: torch.device) -> TrainingBatch:
    """Return the batch on a device."""
    return TrainingBatch(**{field.name: getattr(batch, field.name).to(device) for field in fields(batch)})


def ahead(rows: Tensor, count: int = 1) -> Tensor:
    """Return [S, L, ...] whose row i is row i + count of its lane; zeros where there is none."""
    if count == 0:
        return rows
    shifted = torch.zeros_like(rows)
    if count < rows.shape[1]:
        shifted[:, :-count] = rows[:, count:]
    return shifted


def behind(rows: Tensor, count: int = 1) -> Tensor:
    """Return [S, L, ...] whose row i is row i - count of its lane, with its gradient; zeros where there is none."""
    if count == 0:
        return rows
    kept = rows[:, : max(rows.shape[1] - count, 0)]
    zeros = rows.new_zeros(rows.shape[0], min(count, rows.shape[1]), *rows.shape[2:])
    return torch.cat([zeros, kept], dim=1)


def unbroken(batch: TrainingBatch, before: int, after: int) -> Tensor:
    """Return [S, L] bool: rows i - before .. i + after are all of the window of row i."""
    length, marks = batch.request.shape[1], batch.request
    found = marks >= 0
    for shift in (-before, after):
        if abs(shift) >= length:
            return torch.zeros_like(found)
        if shift:
            found = found & (torch.roll(marks, -shift, dims=1) == marks)
    if before:
        found[:, :before] = False
    if after:
        found[:, length - after :] = False
    return found
