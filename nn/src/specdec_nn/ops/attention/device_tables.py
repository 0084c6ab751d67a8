"""The tables of a step as kernels on a GPU read them: one buffer whose layout follows from sizes alone.

The buffer is filled on the host and copied once. Buffers of the same sizes are laid out alike, so that a captured graph
of kernels finds the tables of every later step at the addresses that it was captured with. Nothing here knows heads,
widths, windows or kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_nn.ops.attention.reference import AttentionStep

TABLES: Final = "device tables"  # key of `AttentionStep.plans`
SHORT: Final = 16  # rows of a segment up to which it goes with the decode rows
FIELDS: Final = 4  # of a segment: first flat row, rows, keys before them, and first key of its tree, CHAIN or MUTUAL
CHAIN: Final = -1
MUTUAL: Final = -2
UNWRITTEN: Final = -1  # a slot: the row is not written
BLANK: Final = -2  # a slot: the row is not written, and is padding that comes out as zeros
_ALIGN: Final = 4  # int32: parts begin at multiples of 16 bytes


@dataclass(frozen=True)
class Sizes:
    """How large the tables of a step are, or of all steps that share a captured graph.

    rows, segments   N and S of `AttentionStep`
    pages            columns of the page table
    words            int64 words of ancestor bits a row; 0 = chains only
    short            rows of the longest segment of at most SHORT rows, 0 = there is none
    long             rows of the longest segment of more than SHORT rows, 0 = there is none
    keys             most keys that a segment has, its own rows included: at most pages * page_size
    exact            a row's result may not depend on the rows beside it, see `AttentionStep.fixed_width`
    """

    rows: int
    segments: int
    pages: int
    words: int
    short: int
    long: int
    keys: int
    exact: bool = False

    @classmethod
    def of(cls, step: AttentionStep) -> Sizes:
        """Return the sizes of one step."""
        counts = step.seg_rows
        short, long = counts[counts <= SHORT], counts[counts > SHORT]
        trees = step.ancestors is not None and step.seg_tree is not None
        return cls(
            rows=len(step.slots),
            segments=len(counts),
            pages=step.page_table.shape[1],
            words=step.ancestors.shape[1] if trees and step.ancestors is not None else 0,
            short=int(short.max(initial=0)),
            long=int(long.max(initial=0)),
            keys=int((step.seg_context + counts).max(initial=0)),
            exact=step.fixed_width and not bool(step.seg_prompt.any()),
        )

    def holds(self, other: Sizes) -> bool:
        """Return whether a step of the other sizes fits into tables of these."""
        names = ("rows", "segments", "pages", "words", "short", "long", "keys")
        return self.exact == other.exact and all(getattr(other, name) <= getattr(self, name) for name in names)

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Where bits, segments, page table and slots begin in the buffer, and how long they are, in int32."""
        lengths = 2 * self.rows * self.words, self.segments * FIELDS, self.segments * self.pages, self.rows
        found, begin = [], 0
        for length in lengths:
            found.append((begin, length))
            begin += -(-length // _ALIGN) * _ALIGN
        return tuple(found)

    @property
    def numbers(self) -> int:
        """How many int32 the buffer has."""
        begin, length = self.parts[-1]
        return begin + -(-length // _ALIGN) * _ALIGN


@dataclass(eq=False)
class DeviceTables:
    """The tables of a step on a device.

    sizes     of the tables
    host      [sizes.numbers] int32: the buffer on the host, pinned where the device is a GPU
    device    [sizes.numbers] int32: the buffer on the device, at a multiple of 16 bytes
    launches  what kernels derive from the sizes, kept for the next layer
    """

    sizes: Sizes
    host: Tensor
    device: Tensor
    launches: dict[Any, Any] = field(default_factory=dict)
    _grown: Tensor | None = None

    @classmethod
    def empty(cls, sizes: Sizes, device: torch.device) -> DeviceTables:
        """Return tables with memory of their own."""
        host = torch.empty(sizes.numbers, dtype=torch.int32, pin_memory=device.type == "cuda")
        return cls(sizes, host, host if device.type == "cpu" else torch.empty_like(host, device=device))

    @classmethod
    def of(cls, step: AttentionStep, device: torch.device) -> DeviceTables:
        """Return the tables of one step, on their way to the device."""
        tables = cls.empty(Sizes.of(step), device)
        tables.fill(step)
        tables.upload()
        return tables

    def fill(self, step: AttentionStep) -> None:
        """Write the tables of a step into the host's buffer; whatever the step does not use is marked as unused.

        The last `upload` must have been done by then. Raises ValueError if the step does not fit.
        """
        found = Sizes.of(step)
        if not self.sizes.holds(found):
            message = f"a step of {found} does not fit into tables of {self.sizes}"
            raise ValueError(message)
        bits, segments, pages, slots = self._host_parts()
        n, rows = found.segments, found.rows
        segments[:] = 0
        segments[:n, 0], segments[:n, 1], segments[:n, 2] = step.seg_start, step.seg_rows, step.seg_context
        segments[:n, 3] = CHAIN if step.seg_tree is None else step.seg_tree
        if step.seg_mutual is not None:
            segments[:n, 3][step.seg_mutual] = MUTUAL
        pages[:n, : found.pages] = step.page_table
        slots[:] = BLANK
        slots[:rows] = np.where(_covered(step), step.slots, BLANK)
        if self.sizes.words:
            bits[:] = 0
            if step.ancestors is not None and found.words:
                bits[:rows, : found.words] = step.ancestors
        self._grown = step.grown

    def upload(self) -> None:
        """Start the one copy to the device, and put bits that are there already into their place."""
        if self.device is not self.host:
            self.device.copy_(self.host, non_blocking=True)
        if self._grown is not None:
            rows, words = self._grown.shape
            self.views()[0].view(self.sizes.rows, self.sizes.words)[:rows, :words].copy_(self._grown)

    def _host_parts(self) -> tuple[npt.NDArray[np.int64], IntArray, IntArray, IntArray]:
        """Return views of the host's buffer: bits [N, words], segments [S, FIELDS], page table [S, P], slots [N]."""
        numbers: IntArray = self.host.numpy()
        bits, segments, pages, slots = (numbers[begin : begin + length] for begin, length in self.sizes.parts)
        s = self.sizes
        return (
            bits.view(np.int64).reshape(s.rows, s.words),
            segments.reshape(s.segments, FIELDS),
            pages.reshape(s.segments, s.pages),
            slots,
        )

    def views(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return flat views of the device's buffer: bits int64, segments, page table and slots int32."""
        bits, segments, pages, slots = (self.device[begin : begin + length] for begin, length in self.sizes.parts)
        return bits.view(torch.int64), segments, pages, slots


def _covered(step: AttentionStep) -> npt.NDArray[np.bool_]:
    """Return which flat rows a segment has, [N]."""
    edges = np.zeros(len(step.slots) + 1, np.int32)
    np.add.at(edges, step.seg_start, 1)
    np.add.at(edges, step.seg_start + step.seg_rows, -1)
    return np.cumsum(edges[:-1]) > 0
