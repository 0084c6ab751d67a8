"""A paged KV arena: one budget of tokens, shared by the requests of a model; it knows pages, not models or requests.

Page p of a layer holds `page_size` consecutive positions of one request: keys [Hkv, page_size, Dk], values
[Hkv, page_size, Dv]. A segment's j-th page holds positions j * page_size onwards, so slot = page * page_size + offset.
Rejecting drafts is a matter of a smaller length; nothing is erased, since rows are written before they are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PAGE_SIZE = 32


@dataclass(slots=True)
class Segment:
    """The pages of one request, in order of position; empty until something is reserved."""

    pages: list[int] = field(default_factory=list)


class KVArena:
    """Pages for `num_tokens` positions (rounded up to whole pages), shared by any number of segments.

    Layers are allocated at their first use, when the shapes are known; page numbers are the same in all layers.
    """

    def __init__(self, num_tokens: int, device: torch.device, page_size: int = PAGE_SIZE) -> None:
        """Set the budget; allocates nothing yet."""
        self.page_size = page_size
        self.num_pages = -(-num_tokens // page_size)
        self.device = device
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_tokens(self) -> int:
        """Positions that fit in all."""
        return self.num_pages * self.page_size

    def reserve(self, segment: Segment, num_tokens: int) -> bool:
        """Make the segment hold positions 0 .. num_tokens - 1; on False nothing has changed."""
        missing = -(-num_tokens // self.page_size) - len(segment.pages)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            segment.pages.append(self._free.pop())
        return True

    def release(self, segment: Segment) -> None:
        """Give all pages of the segment back."""
        self._free.extend(reversed(segment.pages))
        segment.pages.clear()

    def slots(self, segment: Segment, start: int, count: int) -> npt.NDArray[np.int32]:
        """Return the flat slots of positions start .. start + count - 1, [count] int32."""
        positions = np.arange(start, start + count, dtype=np.int32)
        pages = np.asarray(segment.pages, dtype=np.int32)
        slots = pages[positions // self.page_size] * self.page_size + positions % self.page_size
        return slots.astype(np.int32, copy=False)

    def layer(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's pages ([P, Hkv, page, Dk], [P, Hkv, page, Dv]), shaped for rows k [N, Hkv, Dk] and v.

        Raises ValueError if the layer was allocated for other shapes.
        """
        pages = self._layers.get(index)
        if pages is None:
            shape = (self.num_pages, k.shape[1], self.page_size)
            pages = (
                torch.empty((*shape, k.shape[2]), dtype=k.dtype, device=self.device),
                torch.empty((*shape, v.shape[2]), dtype=v.dtype, device=self.device),
            )
            self._layers[index] = pages
        if pages[0].shape[1::2] != k.shape[1:] or pages[1].shape[1::2] != v.shape[1:]:
            message = (
                f"KV layer {index} holds rows {tuple(pages[0].shape[1::2])} and {tuple(pages[1].shape[1::2])}, "
                f"but was given rows {tuple(k.shape[1:])} and {tuple(v.shape[1:])}"
            )
            raise ValueError(message)
        return pages

    def memory_bytes(self) -> int:
        """Return the size of all allocated layers in bytes."""
        return sum(t.numel() * t.element_size() for pair in self._layers.values() for t in pair)

    def check_integrity(self, segments: list[Segment]) -> None:
        """Raise AssertionError unless free pages and the segments' pages make up the arena, each page once."""
        held = [page for segment in segments for page in segment.pages]
        assert sorted(held + self._free) == list(range(self.num_pages)), "a KV page is lost or owned twice"
