"""Committed rows between the step that ran them and the call that delivers them, in the shifted layout, with gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.draft import Rows
from specdec_core.host.requests import HostRequest
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class CommittedRows:
    """Rows of one request that the target has run and kept: positions start .. start + count - 1.

    hidden  [count, H] final hidden states, None where the traits ask for none
    aux     [count, layers, H] states of the residual stream, None where the traits ask for none
    """

    start: int
    count: int
    hidden: Tensor | None = None
    aux: Tensor | None = None

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + self.count

    def last(self) -> CommittedRows:
        """Return the last row alone."""
        hidden = None if self.hidden is None else self.hidden[-1:]
        aux = None if self.aux is None else self.aux[-1:]
        return CommittedRows(self.end - 1, 1, hidden, aux)


def deliver(
    requests: Sequence[HostRequest],
    pending: Sequence[Sequence[CommittedRows]],
    delivered: Sequence[int],
    traits: MethodTraits,
) -> Rows:
    """Return what has been committed for each batch row since the last delivery, as the traits ask for it.

    pending    undelivered rows of each request, in order
    delivered  the position after the last row that each request's proposer was given

    Tensors are copies: a host may use its own again.
    """
    owners: list[int] = []
    chosen: list[CommittedRows] = []
    gap = np.zeros(len(requests), np.bool_)
    for i, own in enumerate(pending):
        if own:
            gap[i] = own[0].start > delivered[i]
            wanted = own if traits.rows == "all" else [own[-1].last()]
            chosen.extend(wanted)
            owners.extend([i] * len(wanted))
    positions = [np.arange(rows.start, rows.end, dtype=np.int32) for rows in chosen]
    tokens = [requests[i].tokens[p + 1] for i, p in zip(owners, positions, strict=True)]
    none = np.empty(0, np.int32)
    return Rows(
        request=np.repeat(np.array(owners, np.int32), [rows.count for rows in chosen]),
        positions=np.concatenate(positions) if positions else none,
        tokens=np.concatenate(tokens) if tokens else none,
        hidden=_joined([rows.hidden for rows in chosen if rows.hidden is not None]),
        aux=_joined([rows.aux for rows in chosen if rows.aux is not None]),
        gap=gap,
    )


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    if not parts:
        return None
    import torch

    return torch.cat(list(parts))
