"""The gated_scan op: linear attention over a state that decays, along the rows of each request of a flat batch.

It knows rows and states, not models; what becomes of rows that are taken back is in `specdec_nn.cache.states`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_nn.cache.states import LayerState, StateStep


def gated_scan_reference(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, state: LayerState, step: StateStep
) -> Tensor:
    """Return the outputs [N, H, Dv] float32 of N rows; the definition. All are float32.

    q, k   [N, G, Dk], each for H / G heads in sequence
    v      [N, H, Dv]
    decay  [N, H] logarithm of the factor on the state
    beta   [N, H] strength of a write, for the delta rule; None: what k and v say is added as it is

    For each head and row, with S [Dk, Dv] the state: S <- exp(decay) S; S <- S + k (beta (v - S^T k))^T, or without
    beta S <- S + k v^T; the output is S^T q. `state` has snapshots [H, Dk, Dv] and logs of k, v, decay and beta (zeros
    if there is none); all are brought up to date. Rows of no segment come out as zeros. Sources: Yang et al., Gated
    Delta Networks (arXiv 2412.06464), section 3.1; Dao and Gu, Mamba-2 (arXiv 2405.21060), section 3.
    """
    heads, groups = v.shape[1], k.shape[1]
    out = torch.zeros_like(v)
    given = (k, v, decay, torch.zeros_like(decay) if beta is None else beta)
    for start, rows, slot, fresh, pending, keep in step.table.tolist():
        if fresh:
            state.snapshot[slot].zero_()
        logs = [log[slot] for log in state.logs]
        ks, vs, decays, betas = (
            torch.cat((log[:pending], part[start : start + rows])) for log, part in zip(logs, given, strict=True)
        )
        running = state.snapshot[slot].clone()
        for j in range(pending + rows):
            key = ks[j].repeat_interleave(heads // groups, dim=0)[:, :, None]
            running = running * decays[j].exp()[:, None, None]
            write = vs[j]
            if beta is not None:
                write = betas[j][:, None] * (write - (running * key).sum(1))
            running = running + key * write[:, None, :]
            if j >= pending:
                row = start + j - pending
                query = q[row].repeat_interleave(heads // groups, dim=0)[:, :, None]
                out[row] = (running * query).sum(1)
            if j + 1 == keep:
                state.snapshot[slot] = running
        for log, part in zip(logs, (ks, vs, decays, betas), strict=True):
            log[: pending + rows - keep] = part[keep:]
    return out
