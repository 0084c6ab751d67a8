"""The tables of a step in the compressed rows that FlashInfer takes, and what it may run; nothing of it is imported.

FlashInfer's page layout "HND" is that of our arena: pages [num_pages, Hkv, page_size, D], keys and values apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from specdec_core.draft import IntArray
from specdec_nn.ops.attention.launches import Geometry
from specdec_nn.ops.attention.reference import AttentionStep

WIDTHS: Final = (64, 128, 256)  # of heads that FlashInfer is built for


@dataclass(frozen=True, eq=False)
class CsrTables:
    """The segments of a step, in order of their rows, which are the first rows[-1] flat rows.

    rows    [S + 1] int32: segment s has flat rows rows[s] .. rows[s + 1] - 1, the newest keys of its request
    pages   [S + 1] int32: and pages indices[pages[s] : pages[s + 1]]
    indices [pages[-1]] int32 page numbers in order of the keys
    last    [S] int32 keys in the last page, 1 .. page_size
    """

    rows: IntArray
    pages: IntArray
    indices: IntArray
    last: IntArray


def csr_tables(step: AttentionStep) -> CsrTables:
    """Return the tables of a step for which `step_unserved` is ""."""
    keys = step.seg_context + step.seg_rows
    count = -(-keys // step.page_size)
    own = np.arange(step.page_table.shape[1])[None, :] < count[:, None]
    return CsrTables(
        rows=_ends(step.seg_rows),
        pages=_ends(count),
        indices=np.ascontiguousarray(step.page_table[own]).astype(np.int32, copy=False),
        last=((keys - 1) % step.page_size + 1).astype(np.int32),
    )


def _ends(counts: IntArray) -> IntArray:
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return ends


def step_unserved(step: AttentionStep) -> str:
    """Return why FlashInfer may not run a step, "" if it may."""
    if step.fixed_width and not step.seg_prompt.all():
        return "rows that may not depend on the others (decode_width): it splits keys by what the others are"
    if step.seg_tree is not None and bool((step.seg_tree >= 0).any()):
        return "token trees: it takes a mask of every row and key of the context, made anew each step"
    if step.seg_mutual is not None and bool(step.seg_mutual.any()):
        return "rows that see each other"
    if not len(step.seg_rows) or bool((step.seg_rows < 1).any()):
        return "segments without rows"
    if bool((step.seg_start != np.cumsum(step.seg_rows) - step.seg_rows).any()):
        return "segments that do not lie one after the other"
    return ""


def layer_unserved(layer: Geometry, window: int | None, *, sinks: bool) -> str:
    """Return why FlashInfer may not run a layer, "" if it may."""
    if layer.size != 2:
        return "float32"
    if layer.dims != layer.width or layer.dims not in WIDTHS:
        return f"keys of width {layer.dims} and values of width {layer.width}"
    if window is not None:
        return "windows: it loads whole tiles, and pages before a window may be another request's by now"
    return "sinks" if sinks else ""
