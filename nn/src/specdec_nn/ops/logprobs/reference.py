"""The logprobs op: how likely a chosen id of each row of logits is; it does not know whose rows they are."""

from __future__ import annotations

import torch
from torch import Tensor


def logprobs_reference(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability [R] float32 and the rank [R] int64 of an id of each row; the definition of the op.

    logits  [R, V] of any float dtype, -inf where an id is excluded; read in float32
    chosen  [R] int64 ids

    The rank is 1 for the largest logit; of equal logits the lowest id comes first. A row with a NaN or +inf gives no
    finite number, and its rank means nothing.
    """
    rows = logits.float()
    own = rows.gather(1, chosen[:, None])
    earlier = torch.arange(rows.shape[1], device=rows.device) < chosen[:, None]
    ranks = ((rows > own) | ((rows == own) & earlier)).sum(1) + 1
    return (own - torch.logsumexp(rows, dim=-1, keepdim=True))[:, 0], ranks
