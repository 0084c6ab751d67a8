"""The selective_scan op: a state space whose steps depend on the input, along the rows of each request of a flat batch.

It knows rows and states, not models; what becomes of rows that are taken back is in `specdec_nn.cache.states`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_nn.cache.states import LayerState, StateStep


def selective_scan_reference(
    x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, state: LayerState, step: StateStep
) -> Tensor:
    """Return the outputs [N, D] float32 of N rows; the definition. All are float32.

    x, dt  [N, D] inputs and steps
    b, c   [N, S]
    a      [D, S] rates, below zero

    For each row, with h [D, S] the state: h <- exp(dt a) h + (dt b) x; the output is the sum of h c over S. `state` has
    snapshots [D, S] and logs of x, dt and b; all are brought up to date. Rows of no segment come out as zeros.
    Source: Gu and Dao, Mamba (arXiv 2312.00752), section 3.2.
    """
    out = torch.zeros_like(x)
    for start, rows, slot, fresh, pending, keep in step.table.tolist():
        if fresh:
            state.snapshot[slot].zero_()
        logs = [log[slot] for log in state.logs]
        xs, dts, bs = (
            torch.cat((log[:pending], part[start : start + rows])) for log, part in zip(logs, (x, dt, b), strict=True)
        )
        running = state.snapshot[slot].clone()
        for j in range(pending + rows):
            running = torch.exp(dts[j][:, None] * a) * running + dts[j][:, None] * bs[j] * xs[j][:, None]
            if j >= pending:
                row = start + j - pending
                out[row] = (running * c[row]).sum(1)
            if j + 1 == keep:
                state.snapshot[slot] = running
        for log, part in zip(logs, (xs, dts, bs), strict=True):
            log[: pending + rows - keep] = part[keep:]
    return out
