"""Drafting from the target's last state alone, for heads without a cache; it knows no head and no weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BatchView, Draft, FinishReason, RequestView, Rows
from specdec_core.errors import ContractError
from specdec_nn.device_copies import to_device
from specdec_nn.drafters.head_parts import final_states
from specdec_nn.drafters.hidden_state import Round, spread

# Returns a draft with one row for each request of the round; its states are the target's, [A, H].
LastRowPlan = Callable[[Round], Draft]


class LastRowDrafter:
    """A proposer that keeps nothing between steps; requires `traits.rows == "last"` with the states that it reads.

    The state at a request's last committed position is what the target drew the newest id from. Whatever happened
    before, a step without speculation or a preemption, leaves no trace.
    """

    def __init__(self, plan: LastRowPlan, states: Callable[[Rows], Tensor] = final_states) -> None:
        """Take what makes drafts, and which states [m, H] of the rows they are made of: the final ones, or others."""
        self._plan, self._states = plan, states

    def start(self, request: RequestView) -> None:
        """Keep nothing."""

    def finish(self, request: RequestView, reason: FinishReason) -> None:
        """Have nothing to release."""

    def close(self) -> None:
        """Have nothing to release."""

    def propose(self, batch: BatchView) -> Draft:
        """Draft for the requests that may have drafts and whose last row is there."""
        rows = batch.rows
        if rows is not None and not len(rows.request):
            return Draft.empty(len(batch))
        if rows is None or (rows.hidden is None and rows.aux is None):
            message = "this method needs the target's last rows with hidden states, and the host gave none"
            raise ContractError(message)
        counts = np.bincount(rows.request, minlength=len(batch))
        wanting = np.flatnonzero((counts > 0) & (batch.max_draft > 0))
        if not len(wanting):
            return Draft.empty(len(batch))
        last = np.cumsum(counts)[wanting] - 1
        with torch.inference_mode():
            states = self._states(rows)
            draft = self._plan(
                Round(
                    index=wanting,
                    names=[batch.request(i).id for i in wanting.tolist()],
                    limits=batch.max_draft[wanting],
                    positions=batch.run_len[wanting],
                    states=states[to_device(last, states.device)],
                    batch=batch,
                )
            )
        return spread(draft, wanting, len(batch))
