"""The short_conv op: causal convolution with a kernel for each channel, along the rows of each request of a flat batch.

It knows rows and states, not models; what becomes of rows that are taken back is in `specdec_nn.cache.states`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_nn.cache.states import LayerState, StateStep


def short_conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None, state: LayerState, step: StateStep) -> Tensor:
    """Return the convolution [N, C] float32 of rows x [N, C] float32 with weight [K, C] and bias [C]; the definition.

    Row r of a request becomes bias + sum over i of weight[i] * x[r - K + 1 + i], by rows of the same request, which are
    zero before its first. `state` has snapshots [K - 1, C], the last rows, and one log of rows [C]; both are brought
    up to date. Rows of no segment come out as zeros.
    """
    taps = len(weight)
    out = torch.zeros_like(x)
    for start, rows, slot, fresh, pending, keep in step.table.tolist():
        window, log = state.snapshot[slot], state.logs[0][slot]
        if fresh:
            window.zero_()
        seen = torch.cat((window, log[:pending], x[start : start + rows]))
        for i in range(taps):
            out[start : start + rows] += weight[i] * seen[pending + i : pending + i + rows]
        if bias is not None:
            out[start : start + rows] += bias
        window.copy_(seen[keep : keep + taps - 1])
        left = pending + rows - keep
        log[:left] = seen[keep + taps - 1 : keep + taps - 1 + left]
    return out
