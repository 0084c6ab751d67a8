"""A paged KV arena: one budget of tokens, shared by the requests of a model; it knows pages, not models or requests.

Page p of a layer holds `page_size` consecutive rows of one request: keys [Hkv, page_size, Dk], values
[Hkv, page_size, Dv]. A segment's j-th page holds rows j * page_size onwards, so slot = page * page_size + offset. What
is committed stands in order of position; the nodes of a token tree stand behind it, in their own order.
Rejecting drafts is a matter of a smaller length; nothing is erased, since rows are written before they are read.
Accepting a path of a tree moves its rows together.

Pages that are full and committed may be published under a key. Other segments can then take them over, and they stay
findable after their last segment has gone, until their room is needed: the one that was given back first goes first.
Published pages are never written, so that nothing has to be copied.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_nn.cache.states import StatePool, StateStep
from specdec_nn.ops.compact.reference import compact_reference

PAGE_SIZE = 32
Capture = Callable[[Callable[[], None]], Callable[[], None]]  # see `specdec_nn.graphs`


@dataclass(slots=True)
class Segment:
    """The pages of one request, in order of its rows; empty until something is reserved.

    fixed  how many of the first pages are published or taken over; their rows are read only
    slot   where the request's recurrent states are; -1: it holds none
    """

    pages: list[int] = field(default_factory=list)
    fixed: int = 0
    slot: int = -1


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
        states: StatePool | None = None,
    ) -> None:
        """Set the budget; allocates nothing yet. `compact` is the kernel that `keep` uses.

        `states` is of a model with recurrent layers: whoever holds pages then holds a slot of it as well.
        """
        self.page_size = page_size
        self.num_pages = -(-num_tokens // page_size)
        self.device = device
        self._compact = compact
        self.states = states
        self.capture: Capture | None = None  # how forwards that write here are captured as graphs; None: they are not
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._holders = [0] * self.num_pages  # segments that hold a page
        self._keys: dict[int, bytes] = {}  # of published pages
        self._published: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # published pages that nobody holds, next to go first
        self._beside: dict[str, Tensor] = {}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._plans: dict[Any, Any] = {}  # of `compact`, as long as no layer is added

    @property
    def num_tokens(self) -> int:
        """Rows that fit in all."""
        return self.num_pages * self.page_size

    @property
    def pages_in_use(self) -> int:
        """Pages that segments hold; published ones that nobody holds are as good as free."""
        return self.num_pages - len(self._free) - len(self._idle)

    @property
    def pages_published(self) -> int:
        """Pages that can be taken over."""
        return len(self._published)

    def reserve(self, segment: Segment, num_tokens: int) -> bool:
        """Make the segment hold rows 0 .. num_tokens - 1; on False nothing has changed."""
        missing = -(-num_tokens // self.page_size) - len(segment.pages)
        if missing > len(self._free) + len(self._idle):
            return False
        for _ in range(missing):
            page = self._free.pop() if self._free else self._evicted()
            self._holders[page] = 1
            segment.pages.append(page)
        if self.states is not None and segment.slot < 0:
            segment.slot = self.states.take()
        return True

    def release(self, segment: Segment) -> None:
        """Give all pages of the segment back. Published ones stay findable, the first ones for longest."""
        for page in reversed(segment.pages):
            self._let_go(page)
        segment.pages.clear()
        segment.fixed = 0
        if self.states is not None and segment.slot >= 0:
            self.states.release(segment.slot)
            segment.slot = -1

    def publish(self, segment: Segment, keys: Sequence[bytes]) -> None:
        """Let others find the segment's first len(keys) pages, whose rows are all committed, under their keys.

        Where a key is known already, the segment keeps its own page and the known one stays.
        """
        for page, key in zip(segment.pages[segment.fixed : len(keys)], keys[segment.fixed :], strict=True):
            if key not in self._published:
                self._published[key] = page
                self._keys[page] = key
        segment.fixed = max(segment.fixed, len(keys))

    def find(self, keys: Iterable[bytes]) -> int:
        """Return how many of the keys, from the first one on, are of published pages."""
        found = 0
        for key in keys:
            if key not in self._published:
                break
            found += 1
        return found

    def take(self, segment: Segment, keys: Sequence[bytes]) -> None:
        """Let the segment hold the published pages of these keys behind its fixed ones, in place of its own there.

        Nothing of the replaced pages may have been written. Raises KeyError, and changes nothing, for an unknown key.
        """
        pages = [self._published[key] for key in keys]
        for page in pages:
            self._holders[page] += 1
            self._idle.pop(page, None)
        for page in segment.pages[segment.fixed : segment.fixed + len(pages)]:
            self._let_go(page)
        segment.pages[segment.fixed : segment.fixed + len(pages)] = pages
        segment.fixed += len(pages)

    def forget(self) -> None:
        """Let no published page be found again; segments keep those that they hold."""
        self._free.extend(reversed(self._idle))
        self._idle.clear()
        self._keys.clear()
        self._published.clear()

    def _let_go(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._keys:
                self._idle[page] = None
            else:
                self._free.append(page)

    def _evicted(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._published[self._keys.pop(page)]
        return page

    def slots(self, segment: Segment, start: int, count: int, *, written: bool = True) -> npt.NDArray[np.int32]:
        """Return the flat slots of rows start .. start + count - 1, [count] int32.

        Raises ValueError for rows that are to be written and in a page that others may hold as well.
        """
        if written and start < segment.fixed * self.page_size:
            message = f"row {start} is in the first {segment.fixed} pages, which are read only: they may be shared"
            raise ValueError(message)
        return self._slots(segment, np.arange(start, start + count, dtype=np.int32))

    def _slots(self, segment: Segment, rows: IntArray) -> IntArray:
        pages = np.asarray(segment.pages, dtype=np.int32)
        slots = pages[rows // self.page_size] * self.page_size + rows % self.page_size
        return slots.astype(np.int32, copy=False)

    def state_step(
        self, segments: Sequence[Segment], starts: IntArray, rows: IntArray, context: IntArray, certain: IntArray
    ) -> StateStep | None:
        """Return what a forward does to the states of its segments, and count it as done; None where there are none.

        Arguments are those of `StatePool.step`, [S] each. Raises ValueError as that does.
        """
        if self.states is None:
            return None
        slots = [segment.slot for segment in segments]
        return self.states.step(starts.tolist(), rows.tolist(), slots, context.tolist(), certain)

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

    def pages(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the pages of a layer that has been written to; raises KeyError for others."""
        return self._layers[index]

    def memory_bytes(self) -> int:
        """Return the size of all allocated layers, of the rows beside them, and of recurrent states, in bytes."""
        states = 0 if self.states is None else self.states.memory_bytes()
        return states + self.rows_bytes()

    def rows_bytes(self) -> int:
        """Return the size of what is kept for each of `num_tokens` rows, in bytes."""
        layers = [pages for pair in self._layers.values() for pages in pair]
        return sum(t.numel() * t.element_size() for t in (*layers, *self._beside.values()))

    def kept_beside(self, name: str) -> Tensor | None:
        """Return the rows that `beside` made under a name, None if there are none."""
        return self._beside.get(name)

    def beside(self, name: str, example: Tensor) -> Tensor:
        """Return rows [num_tokens, ...] that a host keeps by slot beside keys and values, as those of `example`."""
        rows = self._beside.get(name)
        if rows is None:
            rows = torch.empty((self.num_tokens, *example.shape[1:]), dtype=example.dtype, device=example.device)
            self._beside[name] = rows
        return rows

    def check_integrity(self, segments: Sequence[Segment]) -> None:
        """Raise AssertionError unless each page is free, idle, or held by as many segments as are counted.

        A page of two segments must be a fixed one of both.
        """
        holders = Counter(page for segment in segments for page in segment.pages)
        assert sorted((*holders, *self._free, *self._idle)) == list(range(self.num_pages)), (
            "a KV page is lost or owned twice"
        )
        assert self._holders == [holders[page] for page in range(self.num_pages)], "holders of a KV page are miscounted"
        own = [page for segment in segments for page in segment.pages[segment.fixed :]]
        assert all(holders[page] == 1 and page not in self._keys for page in own), "a shared KV page can be written"
        assert {page: key for key, page in self._published.items()} == self._keys, "a KV page has two keys"
        assert set(self._idle) <= set(self._keys), "a KV page that cannot be found is kept"
        if self.states is not None:
            slots = [segment.slot for segment in segments if segment.slot >= 0]
            assert len(set(slots)) == len(slots) == self.states.slots_in_use, "a slot of states is lost or held twice"
