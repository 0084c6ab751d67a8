"""The distributions that several parts drew from, as one tensor over the target's ids; imports torch when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Distributions:
    """The distributions of one step's drafts. With one part that draws they stay as they are."""

    def __init__(self, vocab_size: int) -> None:
        """Begin with none; ids are below `vocab_size`."""
        self._vocab_size = vocab_size
        self._found: list[tuple[Tensor, Tensor | None]] = []

    def begin(self) -> None:
        """Forget the last step."""
        self._found = []

    def add(self, q: Tensor, d2t: Tensor | None) -> int:
        """Add distributions q [m, V or len(d2t)]; return the number of the first among all."""
        offset = sum(len(other) for other, _ in self._found)
        self._found.append((q, d2t))
        return offset

    def q(self) -> tuple[Tensor, Tensor | None] | None:
        """Return all distributions and the offsets of their ids, as `Draft.q` and `Draft.d2t`; None for none."""
        if not self._found:
            return None
        if len(self._found) == 1:
            return self._found[0]
        import torch

        return torch.cat([self._full(q, d2t) for q, d2t in self._found]), None

    def _full(self, q: Tensor, d2t: Tensor | None) -> Tensor:
        """Return distributions over all ids of the target."""
        if d2t is None:
            return q
        import torch

        full = q.new_zeros(q.shape[0], self._vocab_size)
        ids = torch.arange(len(d2t), device=q.device) + d2t.to(q.device)
        return full.index_copy_(1, ids, q)
