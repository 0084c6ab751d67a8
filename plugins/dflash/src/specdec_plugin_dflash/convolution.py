"""The convolution by which rows of a DFlash2 block exchange values; it reads no files (docs/dflash.md)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class BlockConvolution:
    """A pair of convolutions around a sublayer: before it, and of what it gives; their taps depend on its input.

    A row reads itself and the rows before it in its own block.
    """

    def __init__(self, base: Tensor, project: Callable[[Tensor], Tensor]) -> None:
        """Take the base taps [2, T, H], and what makes the changes to them [N, 2 T H / g] of rows [N, H]."""
        self._base, self._project = base, project

    def around(self, x: Tensor, place: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what comes of normed rows x [N, H] by the sublayer and both convolutions.

        `place` [N] int64 is the index of each row in its block; rows of a block follow each other.
        """
        sides, taps, _ = self._base.shape
        change = self._project(x).view(len(x), sides, taps, -1)
        first = _convolved(x, self._base[0], change[:, 0], place)
        return _convolved(sublayer(first), self._base[1], change[:, 1], place)


def _convolved(x: Tensor, base: Tensor, change: Tensor, place: Tensor) -> Tensor:
    """Return rows [N, H] of x, each with those before it: base taps [T, H] plus changes [N, T, H / g] of groups."""
    taps, groups = change.shape[1:]
    parts, weights = x.view(len(x), groups, -1), base.view(taps, groups, -1) + change[..., None]
    out = weights[:, 0] * parts
    for tap in range(1, min(taps, len(x))):
        seen = (place[tap:] >= tap)[:, None, None]
        out[tap:] += torch.where(seen, weights[tap:, tap] * parts[:-tap], 0.0)
    return out.view_as(x)
