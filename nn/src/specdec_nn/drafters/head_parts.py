"""What heads over the target's states have in common: the states of rows, vectors of ids, logits; it reads no files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_core.draft import Rows


@dataclass(slots=True)
class Vocabulary:
    """Where ids become vectors and states become logits.

    table   [n, H_d] embeddings; ids beyond its end (placeholders of images) take its last row
    logits  logits [N, V_d] of states [N, H_d]
    d2t     [V_d] offsets, None = target ids
    scale   factor of the embeddings
    mask    an id with a vector [H_d] of its own, None without one
    """

    table: Tensor
    logits: Callable[[Tensor], Tensor]
    d2t: Tensor | None
    scale: float = 1.0
    mask: tuple[int, Tensor] | None = None

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings [N, H_d] of ids [N]."""
        vectors = self.table[tokens.clamp(max=len(self.table) - 1)]
        if self.mask is not None:
            token, vector = self.mask
            vectors = torch.where((tokens == token)[:, None], vector, vectors)
        return vectors if self.scale == 1.0 else vectors * self.scale


def final_states(rows: Rows) -> Tensor:
    """Return the target's final states [N, H], which the traits must ask for."""
    assert rows.hidden is not None
    return rows.hidden


def aux_states(rows: Rows) -> Tensor:
    """Return the target's states of several layers side by side, [N, n H], which the traits must ask for."""
    assert rows.aux is not None
    return rows.aux.flatten(1)
