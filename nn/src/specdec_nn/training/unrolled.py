"""Attention of drafts that are unrolled from every row of a batch at once; it knows no head.

At depth 0 a row sees the rows of its window up to itself, as committed rows do in decoding. At depth d, row i stands
for the d-th draft behind row i - d: it sees the rows 0 .. i - d of depth 0, and of each depth in between the one row on
the way. So what a row computes is what the drafting loop computes behind row i - d (training-time test: EAGLE-3, arXiv
2503.01840, section 3.1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_nn.training.batches import behind


class UnrolledAttention:
    """Keys and values of one block over a batch, depth after depth."""

    def __init__(self, request: Tensor, scaling: float) -> None:
        """Take the windows of the rows, [S, L] (-1 is padding), and the factor of the scores."""
        self._same = request[:, :, None] == request[:, None, :]  # [S, L, L]
        self._scaling = scaling
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what rows of the next depth see, [S, L, heads, D]; q [S, L, heads, D], k and v [S, L, kv_heads, D].

        Rows whose way does not lie in one window give numbers without meaning.
        """
        depth = len(self._keys)
        self._keys.append(k)
        self._values.append(v)
        lanes, length, heads, width = q.shape
        groups = k.shape[2]
        # Queries of the heads that share keys lie below each other: [S, groups, heads / groups, L, D].
        asked = q.view(lanes, length, groups, heads // groups, width).permute(0, 2, 3, 1, 4)
        if depth == 0:
            seen = self._seen(0)[:, None]
            mixed = F.scaled_dot_product_attention(
                asked.flatten(1, 2),
                _spread(k, heads),
                _spread(v, heads),
                attn_mask=seen,
                scale=self._scaling,
            )
            return mixed.transpose(1, 2)
        return self._further(asked, depth).permute(0, 3, 1, 2, 4).reshape(lanes, length, heads, width)

    def _further(self, asked: Tensor, depth: int) -> Tensor:
        """Return what rows of a depth above 0 see, [S, groups, heads / groups, L, D]."""
        keys, values = (tensors[0].transpose(1, 2)[:, :, None] for tensors in (self._keys, self._values))
        scores = torch.matmul(asked, keys.transpose(-1, -2)) * self._scaling
        scores = scores.masked_fill(~self._seen(depth)[:, None, None], float("-inf"))
        way_keys, way_values = (self._way(tensors, depth) for tensors in (self._keys, self._values))
        on_way = [(asked * each).sum(-1, keepdim=True) * self._scaling for each in way_keys]
        weights = torch.cat([scores, *on_way], dim=-1).float().softmax(dim=-1).to(asked.dtype)
        length = scores.shape[-1]
        mixed = torch.matmul(weights[..., :length], values)
        for i, each in enumerate(way_values):
            mixed = mixed + weights[..., length + i, None] * each
        return mixed

    @staticmethod
    def _way(tensors: list[Tensor], depth: int) -> list[Tensor]:
        """Return the rows of depths 1 .. depth that each row sees, [S, groups, 1, L, D] each."""
        rows = [behind(tensors[at], depth - at) for at in range(1, depth + 1)]
        return [each.transpose(1, 2)[:, :, None] for each in rows]

    def _seen(self, depth: int) -> Tensor:
        """Return [S, L, L] bool: rows of depth 0 that a row of a depth sees. At depth 0 each row sees itself."""
        length = self._same.shape[-1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self._same.device).tril(-depth)
        return self._same & causal


def _spread(tensor: Tensor, heads: int) -> Tensor:
    """Return keys or values [S, heads, L, D] of each head, from those [S, L, groups, D] that heads share."""
    return tensor.transpose(1, 2).repeat_interleave(heads // tensor.shape[2], dim=1)
