"""The distributions q that soft drafts were drawn from, and what rejections leave of the target's p."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.draft import Draft
from specdec_core.errors import ContractError


@dataclass(slots=True)
class Distributions:
    """Distributions of soft drafts, used as they are: a row that adds up to c stands for the distribution q / c.

    q       [m, V_d] float32; [0, 1] where no draft is soft
    total   [m] float64, what each row of q adds up to
    ids     [V_d] int64, the target id of each column; None: columns are target ids
    column  [V] int64, the column of each target id, -1 = none; None: columns are target ids
    """

    q: Tensor
    total: Tensor
    ids: Tensor | None = None
    column: Tensor | None = None

    def at(self, q_row: Tensor, ids: Tensor) -> Tensor:
        """Return q, float64, of target ids [a, c] in the rows q_row [a]; 0 where that is -1 or no column has the id."""
        if not len(self.q):
            return torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        columns = ids if self.column is None else self.column[ids]
        known = (q_row[:, None] >= 0) & (columns >= 0)
        values = self.q[q_row.clamp_min(0)[:, None], columns.clamp_min(0)].double()
        return torch.where(known, values, 0.0)

    def totals(self, q_row: Tensor, removed: Tensor | None = None) -> Tensor:
        """Return what distributions q_row [a] add up to without ids `removed` [a, c], [a] float64; 1 where q_row is -1.

        -1 among `removed` is no id. What is left is summed, since a difference would be rounding where little is left.
        """
        if not len(self.q):
            return torch.ones(len(q_row), dtype=torch.float64, device=q_row.device)
        rows = q_row.clamp_min(0)
        total = self.total[rows] if removed is None else self._without(rows, removed).sum(1)
        return torch.where(q_row >= 0, total, 1.0)

    def _without(self, rows: Tensor, removed: Tensor) -> Tensor:
        """Return distributions `rows` [a] in float64 with 0 at the target ids `removed` [a, c], [a, V_d]."""
        result = self.q[rows].double()
        columns = removed if self.column is None else torch.where(removed >= 0, self.column[removed.clamp_min(0)], -1)
        row, place = (columns >= 0).nonzero(as_tuple=True)
        result[row, columns[row, place]] = 0.0
        return result


@dataclass(slots=True)
class Remainder:
    """Weights max(alpha p(v) - beta q(v), 0), and 0 at removed ids, of n rows: what a rejection leaves to draw from.

    rows     [n] int64, rows of p (and of the noise)
    alpha    [n] float64
    beta     [n] float64; 0 where there is no distribution
    q_row    [n] int64, -1 = no distribution
    removed  [n, c] int64 target ids, -1 = none
    """

    rows: Tensor
    alpha: Tensor
    beta: Tensor
    q_row: Tensor
    removed: Tensor


class DistributionReader:
    """Reads the distributions of drafts; the map of a draft vocabulary is turned round once and kept."""

    def __init__(self) -> None:
        """Know no map yet."""
        self._d2t: Tensor | None = None
        self._maps: tuple[Tensor, Tensor] | None = None

    def read(self, draft: Draft, vocab_size: int, device: torch.device) -> Distributions:
        """Return the distributions of a draft in host form for a target of `vocab_size` ids; raises ContractError."""
        if draft.q is None:
            return Distributions(torch.zeros(0, 1, device=device), torch.zeros(0, dtype=torch.float64, device=device))
        q = draft.q.detach().to(device, torch.float32, non_blocking=True)
        ids, column = (None, None) if draft.d2t is None else self._inverse(draft.d2t, vocab_size, device)
        width = vocab_size if ids is None else len(ids)
        if q.shape[1] != width:
            message = f"the distributions of the drafts have {q.shape[1]} columns, expected {width}"
            raise ContractError(message)
        # In trees, what remains after the likeliest children can be far below float32's rounding of the whole.
        total = q.sum(-1, dtype=torch.float64 if draft.parents is not None else None).double()
        return Distributions(q, total, ids, column)

    def _inverse(self, d2t: Tensor, vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the target id of each column and the column of each target id."""
        if self._d2t is d2t and self._maps is not None and len(self._maps[1]) == vocab_size:
            return self._maps
        ids = (torch.arange(len(d2t), device=d2t.device) + d2t.long()).to(device)
        if len(ids) and not (0 <= int(ids.min()) and int(ids.max()) < vocab_size):
            message = f"d2t leads to target ids {int(ids.min())}..{int(ids.max())}, outside of 0..{vocab_size - 1}"
            raise ContractError(message)
        column = torch.full((vocab_size,), -1, dtype=torch.int64, device=device)
        column[ids] = torch.arange(len(ids), device=device)
        if int((column >= 0).sum()) != len(ids):
            message = "d2t leads from two draft ids to one target id"
            raise ContractError(message)
        self._d2t, self._maps = d2t, (ids, column)
        return ids, column
