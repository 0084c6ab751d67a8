"""Attention of a device at real sizes: compared with the definition, and timed; on a CPU, at small sizes, a dry run."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from gpu_parts.clock import copy_bytes_per_second, kernel_seconds
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.importing import import_object
from specdec_core.registry.kernels import Kernels
from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference
from specdec_nn.ops.attention.reference import AttentionStep, attention_reference

HEADS: Final = (32, 8)  # query heads and kv heads, as of Llama models of 1B (width 64) and 8B (width 128)
PAGE: Final = 32
COLD: Final = 2**28  # bytes of keys and values that go by between two uses of one, as in a model of many layers
CALLS: Final = 20
ERROR: Final = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6, torch.float32: 2.0**-15}  # beside values of about 1

Op = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """A batch of requests with as many rows each: decode rows, a tree, or a chunk of a prompt."""

    requests: int
    rows: int
    context: int
    width: int
    tree: bool = False

    @property
    def name(self) -> str:
        """What the case is."""
        kind = "tree" if self.tree else "rows"
        return f"{self.requests} x {self.rows} {kind} at {self.context}, heads of {self.width}"

    @property
    def bytes(self) -> int:
        """Bytes of keys and values that one layer has to read, two an element."""
        return self.requests * (self.context + self.rows) * HEADS[1] * 2 * self.width * 2


@dataclasses.dataclass
class Batch:
    """A case's tables, queries, keys and values, and pages of as many layers as are COLD together."""

    step: AttentionStep
    q: Tensor
    k: Tensor
    v: Tensor
    layers: list[tuple[Tensor, Tensor]]

    def call(self, op: Op, layer: int = 0) -> Tensor:
        """Return what an op gives for one layer."""
        k_pages, v_pages = self.layers[layer % len(self.layers)]
        return op(self.q, self.k, self.v, k_pages, v_pages, self.step, scaling=self.q.shape[2] ** -0.5)

    def part(self, s: int, first: int, count: int) -> Batch:
        """Return rows first .. first + count - 1 of one segment, a chain or a whole tree, as a batch of its own."""
        step, one = self.step, slice(s, s + 1)
        rows = slice(int(step.seg_start[s]) + first, int(step.seg_start[s]) + first + count)
        own = AttentionStep(
            step.slots[rows], step.seg_start[:1], step.seg_rows[one] * 0 + count, step.seg_context[one] + first,
            step.seg_prompt[one], step.page_table[one], step.page_size,
            None if step.seg_tree is None else step.seg_tree[one],
            None if step.ancestors is None else step.ancestors[rows], fixed_width=step.fixed_width,
        )  # fmt: skip
        return Batch(own, self.q[rows], self.k[rows], self.v[rows], self.layers)


def cases(*, small: bool) -> list[Case]:
    """Return the cases: 8k tokens of context, or next to none."""
    context, batches = (40, (1, 3)) if small else (8192, (1, 8, 32))
    found = []
    for width in (64, 128):
        found += [Case(n, 1, context, width) for n in batches]
        found += [Case(n, 6, context, width) for n in batches[:2]]
        found += [Case(n, 8 if small else 32, context, width, tree=True) for n in batches[:2]]
        found.append(Case(1, 20 if small else 512, context, width))
    return found


def run(device: torch.device, *, small: bool = False, dtype: torch.dtype = torch.bfloat16) -> list[dict[str, Any]]:
    """Return one record a case and backend.

    op, case       the backend as "attention.<backend>", and what was run
    equal          whether it is the definition's result up to rounding; to the bit where the case says so
    error          the largest difference from the definition, beside values of about 1
    microseconds   of one call, one layer
    bytes          of keys and values that the call has to read once
    share_of_copy  bytes a second over those that copying a tensor reads and writes
    """
    torch.manual_seed(0)
    rate = copy_bytes_per_second(device)
    records = []
    for case in cases(small=small):
        batch = _batch(case, device, dtype, small=small)
        for name, op in _backends(device):
            error = _error(batch, case, op)
            seconds = kernel_seconds(partial(batch.call, op), device, CALLS)
            record = {"op": f"attention.{name}", "case": case.name, "equal": error <= ERROR[dtype], "error": error}
            speed = case.bytes / seconds / rate
            records.append(
                record | {"microseconds": seconds * 1e6, "bytes": case.bytes, "share_of_copy": round(speed, 4)}
            )
    return [*records, *_alone(device, dtype, small=small)]


def _backends(device: torch.device) -> Iterator[tuple[str, Op]]:
    """Yield the device's own backend, then FlashInfer's where it is installed."""
    catalog = Catalog.discover()
    kernels = Kernels(catalog)
    yield kernels.backend("attention", device), kernels.get("attention", device)
    if device.type == "cuda" and importlib.util.find_spec("flashinfer") is not None:
        record = next(r for r in catalog.of_kind("kernel") if r.name == "attention.flashinfer")
        yield "flashinfer", import_object(record)


def _batch(case: Case, device: torch.device, dtype: torch.dtype, *, small: bool) -> Batch:
    """Return random inputs for a case, over pages in a random order."""
    count = -(-(case.context + case.rows) // PAGE)
    table = np.random.default_rng(0).permutation(case.requests * count).astype(np.int32).reshape(-1, count)
    own = case.context + np.arange(case.rows)
    slots = (table[:, own // PAGE] * PAGE + own % PAGE).ravel().astype(np.int32)
    rows = np.full(case.requests, case.rows, np.int32)
    start = (np.cumsum(rows) - rows).astype(np.int32)
    step = AttentionStep(slots, start, rows, rows * 0 + case.context, rows > 64, table, PAGE)
    if case.tree:  # every node has two children
        parents = torch.from_numpy(np.tile((np.arange(case.rows - 1) - 2) // 2, case.requests).astype(np.int32))
        step.seg_tree = step.seg_context
        step.ancestors = ancestor_bits_reference(parents, [case.rows - 1] * case.requests).numpy()
    heads, kv_heads = HEADS
    draw = lambda *shape: torch.randn(*shape, device=device).to(dtype)  # noqa: E731
    shape = case.requests * count, kv_heads, PAGE, case.width
    copies = 1 if small else min(-(-COLD // case.bytes), 32)
    pages = [(draw(*shape), draw(*shape)) for _ in range(copies)]
    n = len(slots)
    return Batch(step, draw(n, heads, case.width), draw(n, kv_heads, case.width), draw(n, kv_heads, case.width), pages)


def _error(batch: Batch, case: Case, op: Op) -> float:
    """Return how far the rows of the first and of the last request are from the definition."""
    got, error = batch.call(op), 0.0
    for s in sorted({0, case.requests - 1}):
        want = batch.part(s, 0, case.rows).call(attention_reference)
        mine = got[s * case.rows : (s + 1) * case.rows]
        error = max(error, float((mine.float() - want.float()).abs().max()))
    return error


def _alone(device: torch.device, dtype: torch.dtype, *, small: bool) -> list[dict[str, Any]]:
    """Return whether, with a fixed width, rows of a request have the bits that they have one by one."""
    name, op = next(_backends(device))
    case = Case(2, 4, 40 if small else 3000, 128)
    batch = _batch(case, device, dtype, small=True)
    batch.step.fixed_width = True
    got = batch.call(op)
    equal = all(torch.equal(batch.part(0, r, 1).call(op)[0], got[r]) for r in range(case.rows))
    return [{"op": f"attention.{name}", "case": "fixed width: rows alone, to the bit", "equal": equal}]
