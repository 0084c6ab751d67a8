"""The selective_scan op on a CPU: a task is a stretch of channels of one request, row after row."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import prange
from torch import Tensor

from specdec_nn.cache.states import FRESH, KEEP, PENDING, ROWS, SLOT, START, LayerState, StateStep
from specdec_nn.ops.cpu.exponential import exponential
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.row_log import note
from specdec_nn.ops.selective_scan.reference import selective_scan_reference
from specdec_nn.turns import one_at_a_time

STRETCH: Final = 64  # channels of a task
ALONE: Final = 8 * 1024  # exponentials that one core takes sooner than it wakes the others


@njit(nogil=True, fastmath={"contract"})
def _advance(line: Any, a: Any, b: Any, step: Any, value: Any) -> None:
    """Take the states of one channel over one row."""
    for s in range(len(line)):
        line[s] = exponential(step * a[s]) * line[s] + step * b[s] * value


@njit(nogil=True, fastmath={"contract", "reassoc"})
def _read(line: Any, c: Any) -> Any:
    """Return what one row gives at one channel."""
    total = np.float32(0)
    for s in range(len(line)):
        total += line[s] * c[s]
    return total


@njit(nogil=True)
def _stretch(job: Any, new: Any, a: Any, snapshot: Any, logs: Any, out: Any, low: int, high: int) -> None:
    """Run the rows of one segment, for channels low .. high - 1; the log stays as it is."""
    x, dt, b, c = new
    log_x, log_dt, log_b = logs
    start, rows, slot, pending, keep = job[START], job[ROWS], job[SLOT], job[PENDING], job[KEEP]
    kept = snapshot[slot, low:high]
    if job[FRESH]:
        kept[:] = np.float32(0)
    running = kept if keep == pending + rows else kept.copy()
    for j in range(pending + rows):
        at = start + j - pending
        if j < pending:
            xs, steps, bs = log_x[slot, j], log_dt[slot, j], log_b[slot, j]
        else:
            xs, steps, bs = x[at], dt[at], b[at]
        for d in range(high - low):
            _advance(running[d], a[low + d], bs, steps[low + d], xs[low + d])
            if j >= pending:
                out[at, low + d] = _read(running[d], c[at])
        if j + 1 == keep and keep < pending + rows:
            kept[:] = running


@njit(nogil=True)
def _alone(table: Any, new: Any, a: Any, snapshot: Any, logs: Any, out: Any) -> None:
    for s in range(len(table)):
        _stretch(table[s], new, a, snapshot, logs, out, 0, out.shape[1])


@one_at_a_time
@njit(parallel=True, nogil=True)
def _together(table: Any, new: Any, a: Any, snapshot: Any, logs: Any, out: Any) -> None:
    parts = (out.shape[1] + STRETCH - 1) // STRETCH
    for task in prange(len(table) * parts):
        low = task % parts * STRETCH
        _stretch(table[task // parts], new, a, snapshot, logs, out, low, min(low + STRETCH, out.shape[1]))


@njit(nogil=True)
def _note_all(table: Any, new: Any, logs: Any) -> None:
    for s in range(len(table)):
        if table[s, PENDING] + table[s, ROWS] > table[s, KEEP]:
            note(table[s], logs[0], new[0])
            note(table[s], logs[1], new[1])
            note(table[s], logs[2], new[2])


def selective_scan(
    x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, state: LayerState, step: StateStep
) -> Tensor:
    """Return the outputs [N, D]; see `selective_scan_reference` for arguments, shapes and meaning."""
    if x.device.type != "cpu":
        return selective_scan_reference(x, dt, b, c, a, state, step)
    out = torch.zeros(x.shape)
    new = tuple(part.contiguous().numpy() for part in (x, dt, b, c))
    logs = tuple(log.numpy() for log in state.logs)
    run = _alone if out.numel() * a.shape[1] <= ALONE else _together
    run(step.table, new, a.contiguous().numpy(), state.snapshot.numpy(), logs, out.numpy())
    _note_all(step.table, new, logs)
    return out
