"""The compact op: moves keys and values within the pages of all layers; it does not know trees, segments or models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_nn.device_copies import to_device

Layers = Sequence[tuple[Tensor, Tensor]]  # pages of keys and of values of each layer, [P, Hkv, page, D]


def compact_reference(layers: Layers, sources: IntArray, targets: IntArray, plans: dict[Any, Any]) -> None:
    """Copy the rows in slots `sources` [m] to slots `targets` [m] in all layers; the definition of the op.

    A slot is page * page size + offset, the same in all layers. No slot may be the target of a move and the source of
    a later one, so that backends may move in order, or read everything first. `plans` belongs to the layers and keeps
    what backends know of them between calls.
    """
    for pages in (pages for layer in layers for pages in layer):
        slots = to_device(np.stack((targets, sources)).astype(np.int64), pages.device)
        (page, from_page), (row, from_row) = slots // pages.shape[2], slots % pages.shape[2]
        pages[page, :, row] = pages[from_page, :, from_row]


def addresses(layers: Layers) -> list[tuple[int, ...]]:
    """Return, for the keys and for the values of each layer, where the pages are, in bytes.

    (address, from page to page, from head to head, from row to row, bytes of a row, heads)
    """
    table: list[tuple[int, ...]] = []
    for pages in (pages for layer in layers for pages in layer):
        size = pages.element_size()
        page, head, row, _ = (stride * size for stride in pages.stride())
        table.append((pages.data_ptr(), page, head, row, pages.shape[3] * size, pages.shape[1]))
    return table
