"""The top_ids op: the largest logits of each row and their log-probabilities; it does not know whose rows they are."""

from __future__ import annotations

import torch
from torch import Tensor


def top_ids_reference(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the n most likely ids of each row, best first, [R, n] int32, and their log-probabilities, [R, n] float32.

    logits  [R, V] of any float dtype, on any device; read in float32

    Which of equal logits come first is not laid down. Where a row has fewer than n finite logits, -1 and -inf fill it;
    a row with a NaN or +inf has no distribution and gets nothing else.
    """
    rows = logits.float()
    found = min(n, rows.shape[1])
    values, ids = torch.topk(rows, found, dim=-1)
    total = torch.logsumexp(rows, dim=-1, keepdim=True)
    there = torch.isfinite(values) & torch.isfinite(total)
    ids = torch.where(there, ids, -1).to(torch.int32)
    logprobs = torch.where(there, values - total, -torch.inf)
    if found == n:
        return ids, logprobs
    pad = (0, n - found)
    return torch.nn.functional.pad(ids, pad, value=-1), torch.nn.functional.pad(logprobs, pad, value=-torch.inf)
