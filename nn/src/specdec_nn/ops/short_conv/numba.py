"""The short_conv op on a CPU: channels in vectors, requests and stretches of channels side by side."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import prange
from torch import Tensor

from specdec_nn.cache.states import FRESH, KEEP, PENDING, ROWS, SLOT, START, LayerState, StateStep
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.short_conv.reference import short_conv_reference
from specdec_nn.turns import one_at_a_time

STRETCH: Final = 256  # channels of a task
ALONE: Final = 64 * 1024  # products that one core makes sooner than it wakes the others


@njit(nogil=True)
def _row(at: int, window: Any, log: Any, x: Any, start: int, pending: int) -> Any:
    """Return row `at` of what a request has seen: its window, its pending rows, its new ones."""
    if at < len(window):
        return window[at]
    at -= len(window)
    return log[at] if at < pending else x[start + at - pending]


@njit(nogil=True)
def _stretch(job: Any, x: Any, weight: Any, bias: Any, snapshot: Any, logs: Any, out: Any, low: int, high: int) -> None:
    """Run the rows of one segment, for channels low .. high - 1."""
    start, rows, pending, keep = job[START], job[ROWS], job[PENDING], job[KEEP]
    window, log = snapshot[job[SLOT]], logs[job[SLOT]]
    if job[FRESH]:
        window[:, low:high] = np.float32(0)
    for j in range(rows):
        made = out[start + j, low:high]
        for i in range(len(weight)):
            seen, factor = _row(pending + j + i, window, log, x, start, pending)[low:high], weight[i, low:high]
            for c in range(high - low):
                made[c] += factor[c] * seen[c]
        for c in range(high - low):
            made[c] += bias[low + c]
    # Each row comes from one that is not before it, so in order nothing is written over that is still to be read.
    for at in range(len(window) if keep else 0):
        window[at, low:high] = _row(at + keep, window, log, x, start, pending)[low:high]
    for at in range(pending + rows - keep):
        log[at, low:high] = _row(at + keep + len(window), window, log, x, start, pending)[low:high]


@njit(nogil=True)
def _alone(table: Any, x: Any, weight: Any, bias: Any, snapshot: Any, logs: Any, out: Any) -> None:
    for s in range(len(table)):
        _stretch(table[s], x, weight, bias, snapshot, logs, out, 0, x.shape[1])


@one_at_a_time
@njit(parallel=True, nogil=True)
def _together(table: Any, x: Any, weight: Any, bias: Any, snapshot: Any, logs: Any, out: Any) -> None:
    parts = (x.shape[1] + STRETCH - 1) // STRETCH
    for task in prange(len(table) * parts):
        low = task % parts * STRETCH
        _stretch(table[task // parts], x, weight, bias, snapshot, logs, out, low, min(low + STRETCH, x.shape[1]))


def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None, state: LayerState, step: StateStep) -> Tensor:
    """Return the convolution [N, C]; see `short_conv_reference` for arguments, shapes and meaning."""
    if x.device.type != "cpu":
        return short_conv_reference(x, weight, bias, state, step)
    out = torch.zeros(x.shape)
    bias = torch.zeros(x.shape[1]) if bias is None else bias
    run = _alone if out.numel() * len(weight) <= ALONE else _together
    given = (x, weight, bias, state.snapshot, state.logs[0])
    run(step.table, *(part.contiguous().numpy() for part in given), out.numpy())
    return out
