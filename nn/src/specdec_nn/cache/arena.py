"""A paged KV arena: one budget of tokens, shared by the requests of a model; it knows pages, not models or requests.

Page p of a layer holds `page_size` consecutive rows of one request: keys [Hkv, page_size, Dk], values
[Hkv, page_size, Dv]. A segment's j-th page holds rows j * page_size onwards, so slot = page * page_size + offset. What
is committed stands in order of position; the nodes of a token tree stand behind it, in their own order.
Rejecting drafts is a matter of a smaller length; nothing is erased, since rows are written before they are read.
Accepting a path of a tree moves its rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_nn.ops.compact.reference import compact_reference

PAGE_SIZE = 32


@dataclass(slots=True)
class Segment:
    """The pages of one request, in order of its rows; empty until something is reserved."""

    pages: list[int] = field(default_factory=list)


class KVArena:
    """Pages for `num_tokens` rows (rounded up to whole pages), shared by any number of segments.

    Layers are allocated at their first use, when the shapes are known; page numbers are the same in all layers.
    """

    def __init__(
        self,
        num_tokens: int,
        device: torch.device,
        page_size: int = PAGE_SIZE,
        compact: Callable[..., None] = compact_reference,
    ) -> None:
        """Set the budget; allocates nothing yet. `compact` is the kernel that `keep` uses."""
        self.page_size = page_size
        self.num_pages = -(-num_tokens // page_size)
        self.device = device
        self._compact = compact
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._plans: dict[Any, Any] = {}  # of `compact`, as long as no layer is added

    @property
    def num_tokens(self) -> int:
        """Rows that fit in all."""
        return self.num_pages * self.page_size

    @property
    def pages_in_use(self) -> int:
        """Pages that segments hold."""
        return self.num_pages - len(self._free)

    def reserve(self, segment: Segment, num_tokens: int) -> bool:
        """Make the segment hold rows 0 .. num_tokens - 1; on False nothing has changed."""
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
        """Return the flat slots of rows start .. start + count - 1, [count] int32."""
        return self._slots(segment, np.arange(start, start + count, dtype=np.int32))

    def _slots(self, segment: Segment, rows: IntArray) -> IntArray:
        pages = np.asarray(segment.pages, dtype=np.int32)
        slots = pages[rows // self.page_size] * self.page_size + rows % self.page_size
        return slots.astype(np.int32, copy=False)

    def keep(self, accepted: Iterable[tuple[Segment, int, IntArray]]) -> None:
        """Move the rows of accepted tree nodes together, in all layers: one call of the kernel for all segments.

        For each (segment, start, path): node j of the tree stands in row start + j, and node path[i] goes to row
        start + i. `path` [m] int32 ascends, as a parent stands before its children; a chain's path moves nothing.
        Raises ValueError, and moves nothing, for a path that does not ascend.
        """
        sources, targets = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for segment, start, path in accepted:
            if len(path) and (path[0] < 0 or (path[1:] <= path[:-1]).any()):
                message = f"the path of accepted nodes must ascend from 0 or above, got {path.tolist()}"
                raise ValueError(message)
            moved = np.flatnonzero(path != np.arange(len(path))).astype(np.int32)
            sources.append(self._slots(segment, path[moved] + np.int32(start)))
            targets.append(self._slots(segment, moved + np.int32(start)))
        if any(map(len, sources)):
            layers = list(self._layers.values())
            with torch.inference_mode():  # pages that were made in it may not be written outside
                self._compact(layers, np.concatenate(sources), np.concatenate(targets), self._plans)

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
            self._plans.clear()
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
