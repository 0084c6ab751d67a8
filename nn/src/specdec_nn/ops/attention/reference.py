"""The attention op over a paged KV arena: its tables, and the definition in torch on any device.

It knows segments of a flat ragged batch and pages of keys and values; it does not know requests, models or admission.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_core.draft import BoolArray, IntArray
from specdec_nn.cache.states import StateStep
from specdec_nn.device_copies import all_to_device
from specdec_nn.ops.ancestor_bits.reference import ancestor_lists


@dataclass(slots=True, eq=False)
class AttentionStep:
    """Tables of one forward over N flat rows and S segments, the same for every layer; host arrays.

    Row r of segment s is flat row seg_start[s] + r and has key number seg_context[s] + r of its request. Rows that no
    segment covers are padding and come out as zeros. In a chain a row stands at the position of its key's number, and
    attends to the keys of its own request up to its own. In a tree, which begins at key t = seg_tree[s], a row attends
    to keys 0 .. t - 1 and to those keys t + b whose bit b is set in its row of `ancestors`, its own among them; of m
    such keys the i-th stands at position t + i, and the row itself at t + m - 1. A segment may be a later part of a
    tree, whose earlier rows have run before. A window counts positions. In a mutual segment, which is a chain, a row
    also attends to the rows after it in its segment, and a window counts positions in both directions.

    slots        [N] int32 flat slot page * page_size + offset that the row's key and value go to; -1 = no write
    seg_start    [S] int32 first flat row of the segment
    seg_rows     [S] int32 rows of the segment
    seg_context  [S] int32 keys before the segment's first row
    seg_prompt   [S] bool: a prompt chunk (may use a large-batch path), else decode rows (row by row)
    page_table   [S, P] int32 pages of the segment's request in order of its keys; entries past the last are unused
    page_size    keys a page
    seg_tree     [S] int32 first key of the segment's tree, -1 = a chain; None = chains only
    ancestors    [N, words] int64 bits of `ancestor_bits` for rows of trees; None = chains only
    grown        [N, words] int64: those bits on another device, for trees whose form the host does not know, where
                 `ancestors` has their shape alone; the definition reads them
    seg_mutual   [S] bool: rows of the segment see each other, later ones too; None = none do
    states       what the forward does to the states of layers that keep some; None where no layer does
    fixed_width  all forwards of decode rows have this many rows: a row's result may not depend on what the others are,
                 nor on how many of them are padding, on a GPU either
    """

    slots: IntArray
    seg_start: IntArray
    seg_rows: IntArray
    seg_context: IntArray
    seg_prompt: BoolArray
    page_table: IntArray
    page_size: int
    seg_tree: IntArray | None = None
    ancestors: npt.NDArray[np.int64] | None = None
    seg_mutual: BoolArray | None = None
    states: StateStep | None = None
    fixed_width: bool = False
    grown: Tensor | None = None
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of backends, made once a step

    def bits(self) -> npt.NDArray[np.int64]:
        """Return the bits of rows of trees on the host, where they may have to be read."""
        assert self.ancestors is not None
        if self.grown is not None:
            self.ancestors, self.grown = self.grown.cpu().numpy(), None
        return self.ancestors

    def write_plan(self, device: torch.device) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return (rows that write, None = all; their pages; their offsets) as int64 tensors, made once a device."""
        plan: tuple[Tensor | None, Tensor, Tensor] | None = self.plans.get(device)
        if plan is None:
            rows = np.flatnonzero(self.slots >= 0)
            pages, offsets = np.divmod(self.slots[rows].astype(np.int64), self.page_size)
            chosen, pages_there, offsets_there = all_to_device((rows, pages, offsets), device)
            plan = (None if len(rows) == len(self.slots) else chosen, pages_there, offsets_there)
            self.plans[device] = plan
        return plan


def query_step(page_table: IntArray, rows: IntArray, page_size: int) -> AttentionStep:
    """Return the tables of one query row a request, which sees its first `rows` [S] >= 1 keys, and writes none."""
    count = len(rows)
    return AttentionStep(
        slots=np.full(count, -1, np.int32),
        seg_start=np.arange(count, dtype=np.int32),
        seg_rows=np.ones(count, np.int32),
        seg_context=(rows - 1).astype(np.int32),
        seg_prompt=np.zeros(count, np.bool_),
        page_table=page_table,
        page_size=page_size,
    )


def write_pages(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, step: AttentionStep) -> None:
    """Write the rows' keys [N, Hkv, Dk] and values [N, Hkv, Dv] into their slots; rows with slot -1 write nothing."""
    rows, pages, offsets = step.write_plan(k_pages.device)
    if rows is not None:
        k, v = k[rows], v[rows]
    k_pages[pages, :, offsets] = k
    v_pages[pages, :, offsets] = v


def gather_pages(pages: Tensor, ids: npt.NDArray[np.int32], first: int, end: int) -> Tensor:
    """Return keys or values first .. end - 1, [Hkv, end - first, D], from pages [num_pages, Hkv, page_size, D].

    `ids` are a request's pages in order. Pages before the first row wanted are not touched: with a window,
    the arena may have given them to somebody else.
    """
    page_size = pages.shape[2]
    skipped = first // page_size
    wanted = torch.from_numpy(ids[skipped : -(-end // page_size)].astype(np.int64)).to(pages.device)
    origin = skipped * page_size
    return pages[wanted].transpose(0, 1).flatten(1, 2)[:, first - origin : end - origin]


def rows_of(x: Tensor) -> Tensor:
    """Return x, copied only if the last dimension is strided."""
    return x if x.stride(2) == 1 else x.contiguous()


def visible(rows: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """Return the mask [rows, context + rows], True where row r may see the key: not later, and inside the window."""
    own = torch.arange(context, context + rows, device=device)[:, None]
    key = torch.arange(context + rows, device=device)[None, :]
    seen = key <= own
    return seen if window is None else seen & (key > own - window)


def mutually_visible(rows: int, context: int, window: int, device: torch.device) -> Tensor:
    """Return the mask [rows, context + rows], True where row r may see the key, earlier or later inside the window."""
    own = torch.arange(context, context + rows, device=device)[:, None]
    key = torch.arange(context + rows, device=device)[None, :]
    return (own - key).abs() < window


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    *,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attend by plain float32 matmuls, the definition of the softmax; returns [n, H, Dv] float32.

    q [n, H, Dk], keys [Hkv, L, Dk], values [Hkv, L, Dv], mask [n, L] (True = seen, at least one a row; None =
    all). A soft cap c turns a scaled score s into c tanh(s / c). A sink is one more logit a head, in the softmax
    denominator alone.
    """
    rows, heads, _ = q.shape
    kv_heads = keys.shape[0]
    grouped = q.float().reshape(rows, kv_heads, heads // kv_heads, -1).permute(1, 2, 0, 3)
    scores = grouped @ keys.float().transpose(1, 2)[:, None] * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks.float().view(kv_heads, -1, 1, 1)
        top = torch.maximum(top, sink)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sink - top)
    mixed = (weights @ values.float()[:, None]) / total
    return mixed.permute(2, 0, 1, 3).reshape(rows, heads, -1)


def attend_prompt(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context: int,
    *,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
    window: int | None,
) -> Tensor:
    """Attend for a whole prompt chunk q [n, H, Dk] at once; a function of the chunk, its context and n alone."""
    rows = q.shape[0]
    if softcap is not None or sinks is not None:
        mask = visible(rows, context, window, q.device)
        return attend(q, keys, values, mask, scaling=scaling, softcap=softcap, sinks=sinks)
    causal = context == 0 and (window is None or window >= rows)
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=None if causal else visible(rows, context, window, q.device),
        is_causal=causal,
        scale=scaling,
        enable_gqa=q.shape[1] != keys.shape[0],
    )
    return mixed[0].transpose(0, 1)


def _path_keys(step: AttentionStep, s: int, window: int | None) -> list[npt.NDArray[np.int64]]:
    """Return the keys that each row of a tree's segment sees, in order of position."""
    assert step.seg_tree is not None
    tree, start = int(step.seg_tree[s]), int(step.seg_start[s])
    ends, bits = ancestor_lists(step.bits()[start : start + int(step.seg_rows[s])])
    keys = []
    for begin, end in itertools.pairwise(ends.tolist()):
        first = 0 if window is None else max(0, tree + end - begin - window)
        path = tree + bits[begin:end]
        keys.append(np.concatenate((np.arange(first, tree), path[max(0, first - tree) :])))
    return keys


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    step: AttentionStep,
    *,
    scaling: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Write k and v into the pages, then attend; the definition of the op.

    q [N, H, Dk], k [N, Hkv, Dk], v [N, Hkv, Dv], of any strides; k_pages [num_pages, Hkv, page_size, Dk] and v_pages
    [num_pages, Hkv, page_size, Dv] in the dtype of the model. Query head h reads kv head h // (H // Hkv). `sinks` [H].
    With `window`, a row sees its own and the window - 1 positions before it. Returns [N, H, Dv] in the dtype of q.
    """
    write_pages(k, v, k_pages, v_pages, step)
    q = q.contiguous()  # the rounding of torch's products may follow the strides
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    for s in range(len(step.seg_start)):
        start, rows, context = int(step.seg_start[s]), int(step.seg_rows[s]), int(step.seg_context[s])
        paths = None if step.seg_tree is None or step.seg_tree[s] < 0 else _path_keys(step, s, window)
        first = 0 if window is None else max(0, context + 1 - window)
        if paths is not None:
            first = min(int(path[0]) for path in paths)
        keys = gather_pages(k_pages, step.page_table[s], first, context + rows)
        values = gather_pages(v_pages, step.page_table[s], first, context + rows)
        if step.seg_mutual is not None and step.seg_mutual[s]:
            mask = None if window is None else mutually_visible(rows, context - first, window, q.device)
            out[start : start + rows] = attend(
                q[start : start + rows], keys, values, mask, scaling=scaling, softcap=softcap, sinks=sinks
            )
            continue
        if step.seg_prompt[s]:
            out[start : start + rows] = attend_prompt(
                q[start : start + rows], keys, values, context - first,
                scaling=scaling, softcap=softcap, sinks=sinks, window=window,
            )  # fmt: skip
            continue
        # One row at a time over its own keys only, so that company cannot change the shapes, and in memory of its own,
        # so that it cannot change strides and alignment: the rounding of torch's products may follow all of these.
        for r in range(rows):
            end = context + r + 1
            seen: slice | Tensor = slice(0 if window is None else max(0, end - window) - first, end - first)
            if paths is not None:
                seen = torch.from_numpy(paths[r] - first).to(q.device)
            parts = (q[start + r : start + r + 1], keys[:, seen], values[:, seen])
            row, own_keys, own_values = (part.clone(memory_format=torch.contiguous_format) for part in parts)
            out[start + r] = attend(row, own_keys, own_values, None, scaling=scaling, softcap=softcap, sinks=sinks)[0]
    return out
