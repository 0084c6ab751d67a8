"""The definition of the op `ngram_match`, in plain torch on any device; knows no requests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def ngram_match(tokens: Tensor, lengths: Tensor, min_n: int, max_n: int, k: int, latest: bool = False) -> Tensor:
    """Return what followed an earlier occurrence of each row's longest repeated suffix.

    Of the suffixes of min_n..max_n ids that also end before the row's end (overlap is allowed), the longest is taken,
    and of its earlier occurrences the earliest or the latest.

    tokens    [B, L] int32 or int64; ids from lengths[b] on are ignored
    lengths   [B] int32 or int64, each in 0..L
    returns   [B, k] of tokens' dtype: at most k ids, cut at the row's end, then -1
    """
    rows, width = tokens.shape
    if width < 2 or k == 0:
        return tokens.new_full((rows, k), -1)
    n = lengths.to(torch.int64)[:, None]
    matched = _matched(tokens, n, max_n)
    best = matched.amax(1, keepdim=True)
    ends = torch.arange(width, device=tokens.device)
    candidates = matched == best
    end = torch.where(candidates, ends, -1).amax(1) if latest else torch.where(candidates, ends, width).amin(1)
    columns = end[:, None] + torch.arange(k, device=tokens.device)
    found = (best >= min_n) & (columns < n)
    return torch.where(found, tokens.gather(1, columns.clamp(max=width - 1)), -1)


def _matched(tokens: Tensor, n: Tensor, max_n: int) -> Tensor:
    """Return [B, L] int32: how many ids before each position equal the row's last ids, at most max_n.

    Position e counts as the end of an earlier occurrence: 0 at e = 0 and from the row's length n [B, 1] on.
    """
    width = tokens.shape[1]
    ends = torch.arange(width, device=tokens.device)
    alive = (ends > 0) & (ends < n)
    matched = torch.zeros_like(tokens, dtype=torch.int32)
    for back in range(min(max_n, width - 1)):
        if tokens.device.type == "cpu" and not bool(alive.any()):  # elsewhere the question would cost a wait
            break
        suffix_id = tokens.gather(1, (n - 1 - back).clamp(min=0))
        alive = alive & (ends > back) & (pad(tokens[:, : width - 1 - back], (back + 1, 0)) == suffix_id)
        matched += alive
    return matched
