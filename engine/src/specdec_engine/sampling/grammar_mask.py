"""Rows of logits in which ids that a request's grammar forbids have no chance; one mask for all rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.grammar_state import GrammarState
from specdec_nn.device_copies import to_device

Bound = tuple[int, ScheduledRows, GrammarState]  # the first row, the rows and the grammar of a request that has one


def forbid(logits: Tensor, bound: Sequence[Bound]) -> Tensor:
    """Return logits [R, V] with -inf for what grammars forbid after each row's own drafts; the given ones stay.

    Rows of requests without a grammar are as they were, and if there are no others nothing is copied.
    """
    if not bound:
        return logits
    index = np.concatenate([np.arange(first, first + item.wants) for first, item, _ in bound])
    forbidden = to_device(_forbidden(bound, logits.shape[1]), logits.device)
    logits = logits.clone()
    if len(index) == len(logits):
        return logits.masked_fill_(forbidden, -torch.inf)
    at = to_device(index, logits.device)
    logits[at] = logits[at].masked_fill_(forbidden, -torch.inf)
    return logits


def _forbidden(bound: Sequence[Bound], vocab_size: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return [rows of bound requests, V] bool."""
    parts = [grammar.masks([item.path(row) for row in range(item.wants)]) for _, item, grammar in bound]
    packed = ~np.concatenate(parts).view(np.uint8)
    flags = np.unpackbits(packed, axis=1, count=vocab_size, bitorder="little")
    return flags.view(np.bool_)
