"""The gated_scan op on a CPU: a task is one head of one request, row after row."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from numba import prange
from torch import Tensor

from specdec_nn.cache.states import FRESH, KEEP, PENDING, ROWS, SLOT, START, LayerState, StateStep
from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.row_log import note
from specdec_nn.ops.gated_scan.reference import gated_scan_reference
from specdec_nn.turns import one_at_a_time

ALONE: Final = 256 * 1024  # elements of states that one core passes over sooner than it wakes the others


@njit(nogil=True)
def _write(running: Any, key: Any, value: Any, factor: Any, query: Any, out: Any) -> None:
    """Run one row without the delta rule: the state decays, takes k v^T, and answers q."""
    for i in range(len(running)):
        line, weight, asked = running[i], key[i], query[i]
        for n in range(len(value)):
            line[n] = line[n] * factor + weight * value[n]
            out[n] += line[n] * asked


@njit(nogil=True)
def _correct(running: Any, key: Any, value: Any, factor: Any, beta: Any, query: Any, out: Any, change: Any) -> None:
    """Run one row by the delta rule."""
    change[:] = np.float32(0)
    for i in range(len(running)):
        line, weight = running[i], key[i]
        for n in range(len(value)):
            line[n] *= factor
            change[n] += line[n] * weight
    for n in range(len(value)):
        change[n] = beta * (value[n] - change[n])
    for i in range(len(running)):
        line, weight, asked = running[i], key[i], query[i]
        for n in range(len(value)):
            line[n] += weight * change[n]
            out[n] += line[n] * asked


@njit(nogil=True)
def _head(job: Any, h: int, delta: bool, new: Any, snapshot: Any, logs: Any, out: Any) -> None:
    """Run the rows of one segment in one head; the log stays as it is."""
    q, k, v, decay, beta = new
    log_k, log_v, log_decay, log_beta = logs
    start, rows, slot, pending, keep = job[START], job[ROWS], job[SLOT], job[PENDING], job[KEEP]
    group = h // (v.shape[1] // k.shape[1])
    kept = snapshot[slot, h]
    if job[FRESH]:
        kept[:] = np.float32(0)
    running = kept if keep == pending + rows else kept.copy()
    nowhere, change = np.empty(v.shape[2], np.float32), np.empty(v.shape[2], np.float32)
    for j in range(pending + rows):
        at = start + j - pending
        if j < pending:
            key, value, rate, strength = (
                log_k[slot, j, group],
                log_v[slot, j, h],
                log_decay[slot, j, h],
                log_beta[slot, j, h],
            )
            query, made = key, nowhere
        else:
            key, value, rate, strength = k[at, group], v[at, h], decay[at, h], beta[at, h]
            query, made = q[at, group], out[at, h]
        factor = np.float32(math.exp(rate))
        if delta:
            _correct(running, key, value, factor, strength, query, made, change)
        else:
            _write(running, key, value, factor, query, made)
        if j + 1 == keep and keep < pending + rows:
            kept[:] = running


@njit(nogil=True)
def _alone(table: Any, delta: bool, new: Any, snapshot: Any, logs: Any, out: Any) -> None:
    for s in range(len(table)):
        for h in range(out.shape[1]):
            _head(table[s], h, delta, new, snapshot, logs, out)


@one_at_a_time
@njit(parallel=True, nogil=True)
def _together(table: Any, delta: bool, new: Any, snapshot: Any, logs: Any, out: Any) -> None:
    heads = out.shape[1]
    for task in prange(len(table) * heads):
        _head(table[task // heads], task % heads, delta, new, snapshot, logs, out)


@njit(nogil=True)
def _note_all(table: Any, new: Any, logs: Any) -> None:
    for s in range(len(table)):
        if table[s, PENDING] + table[s, ROWS] > table[s, KEEP]:
            note(table[s], logs[0], new[1])
            note(table[s], logs[1], new[2])
            note(table[s], logs[2], new[3])
            note(table[s], logs[3], new[4])


def gated_scan(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, state: LayerState, step: StateStep
) -> Tensor:
    """Return the outputs [N, H, Dv]; see `gated_scan_reference` for arguments, shapes and meaning."""
    if v.device.type != "cpu":
        return gated_scan_reference(q, k, v, decay, beta, state, step)
    out = torch.zeros(v.shape)
    delta = beta is not None
    given = (q, k, v, decay, torch.zeros_like(decay) if beta is None else beta)
    new = tuple(part.contiguous().numpy() for part in given)
    logs = tuple(log.numpy() for log in state.logs)
    small = state.snapshot[0].numel() * len(v) <= ALONE
    (_alone if small else _together)(step.table, delta, new, state.snapshot.numpy(), logs, out.numpy())
    _note_all(step.table, new, logs)
    return out
