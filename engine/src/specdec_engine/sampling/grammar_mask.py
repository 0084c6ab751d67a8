"""Rows of logits in which ids that a request's grammar forbids have no chance; one mask for all rows of a step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec_engine.sampling.draw_rows import DrawRows


def forbid(logits: Tensor, rows: DrawRows) -> Tensor:
    """Return logits [R, V] with -inf for what grammars forbid after each row's own drafts; the given ones stay.

    Rows of requests without a grammar are as they were, and if there are no others nothing is copied.
    """
    bound = [i for i, request in enumerate(rows.requests) if request.grammar is not None]
    if not bound:
        return logits
    index = np.concatenate([np.arange(rows.starts[i], rows.starts[i] + rows.counts[i]) for i in bound])
    forbidden = torch.from_numpy(_forbidden(rows, bound, logits.shape[1])).to(logits.device)
    logits = logits.clone()
    if len(index) == len(logits):
        return logits.masked_fill_(forbidden, -torch.inf)
    at = torch.from_numpy(index).to(logits.device)
    logits[at] = logits[at].masked_fill_(forbidden, -torch.inf)
    return logits


def _forbidden(rows: DrawRows, bound: list[int], vocab_size: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return [rows of bound requests, V] bool."""
    parts = []
    for i in bound:
        work, grammar = rows.works[i], rows.works[i].request.grammar
        if grammar is not None:
            parts.append(grammar.masks([work.path(row) for row in range(work.wants)]))
    packed = ~np.concatenate(parts).view(np.uint8)
    flags = np.unpackbits(packed, axis=1, count=vocab_size, bitorder="little")
    return flags.view(np.bool_)
