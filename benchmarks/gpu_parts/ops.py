"""The ops: every Triton form against its definition at real sizes, and how much of the memory's speed it reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_parts.clock import copy_bytes_per_second, seconds
from gpu_parts.sizes import Sizes
from specdec_core.noise import Noise
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.importing import import_object
from specdec_nn.ops.truncate.reference import Truncation

TIES = 0.97
Row = dict[str, Any]
Case = tuple[str, tuple[Any, ...], int]  # what it is, arguments, bytes that have to be read and written


def attention(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Check and measure attention over pages."""
    from gpu_parts.attention import run

    for row in run(device, small=device.type == "cpu"):
        yield {"difference" if key == "error" else key: value for key, value in row.items()}


def verification(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Check and measure draws, whole verifications and the other ops of sampling and of trees."""
    from gpu_sampling import check

    for result in check(device, small=device.type == "cpu"):
        row = asdict(result)
        share = row.pop("equal")  # of rows; less than all only by ties that rounding decides
        yield {**row, "equal": share > TIES, "equal_share": share}


def others(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Check and measure the ops that the parts above do not have; name those that nothing here has."""
    large = device.type != "cpu"
    vocab, rows = (sizes.vocab, 192) if large else (sizes.vocab, 4)
    rng = torch.Generator(device).manual_seed(5)
    logits = torch.randn((rows, vocab), generator=rng, device=device)
    noise = Noise(np.arange(rows, dtype=np.uint64) * 977, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
    tree = [-1, -1, *range(30)] if large else [-1, -1, 0, 1, 2]
    parents = torch.tensor(tree * 8, dtype=torch.int32, device=device)
    cut = Truncation(*(np.full(rows, value, kind) for value, kind in (
        (0.7, np.float32), (0.02, np.float64), (50, np.int64), (0.9, np.float64))))  # fmt: skip
    states, above = torch.randn((8, 8, sizes.hidden), generator=rng, device=device), torch.randint(0, 8, (8, 8))
    every: dict[str, Case] = {
        "race": ("one draw a row", (torch.softmax(logits, -1), noise, 0), logits.numel() * 4),
        "truncate": ("top-k, top-p, min-p", (logits, cut), logits.numel() * 8),
        "ancestor_bits": ("8 trees", (parents, [len(tree)] * 8), 0),
        "draft_rows": (
            "8 x 8 rows",
            (states, above.to(device), above.to(device), torch.arange(8, device=device), 1),
            states.numel() * states.element_size() * 2,
        ),
    }
    copied = copy_bytes_per_second(device)
    found = _kernels()
    for op, (case, arguments, size) in every.items():
        if op in found:
            yield compared(op, case, found[op], arguments, size, copied, device)
    yield from _compact(sizes, found["compact"], copied, device)
    covered = {*every, "compact", "attention", "draw", "top_ids", "logprobs", "tree_expand"}
    covered |= {"verify_coupled", "verify_standard", "verify_block"}
    yield {"case": "Triton forms that no part has", "ops": sorted(found.keys() - covered)}


def compared(
    op: str,
    case: str,
    kernels: tuple[Callable[..., Any], Callable[..., Any]],
    arguments: Sequence[Any],
    size: int,
    copied: float,
    device: torch.device,
) -> Row:
    """Return whether both forms give the same, and how quick the first is."""
    fast, definition = kernels
    mine, theirs = _flat(fast(*arguments)), _flat(definition(*arguments))
    equal = all(torch.allclose(a.float(), b.float(), rtol=1e-5, atol=1e-6) for a, b in zip(mine, theirs, strict=True))
    taken = min(seconds(lambda: fast(*arguments), device) for _ in range(10 if device.type == "cuda" else 1))
    row: Row = {"op": op, "case": case, "equal": equal, "microseconds": 1e6 * taken}
    return {**row, "bytes": size, "share_of_copy": size / taken / copied} if size else row


def _compact(sizes: Sizes, kernels: tuple[Any, Any], copied: float, device: torch.device) -> Iterator[Row]:
    """Move the rows of accepted paths in all layers of two equal caches, one by each form."""
    pages, dims = (64, sizes.hidden // sizes.heads)
    made = torch.randn((sizes.layers, 2, pages, sizes.kv_heads, 32, dims), device=device).to(sizes.dtype)
    caches = [[(layer[0], layer[1]) for layer in cache] for cache in (made.clone(), made.clone())]
    sources = np.arange(1, 512 if device.type == "cuda" else 16, 3, dtype=np.int32)
    targets = np.arange(len(sources), dtype=np.int32)
    for kernel, cache in zip(kernels, caches, strict=True):
        kernel(cache, sources, targets, {})
    equal = all(torch.equal(a, b) for pair in zip(*caches, strict=True) for a, b in zip(*pair, strict=True))
    plans: dict[Any, Any] = {}
    taken = min(seconds(lambda: kernels[0](caches[0], sources, targets, plans), device) for _ in range(3))
    size = 2 * len(sources) * made[:, :, 0, :, 0].numel() * made.element_size()
    row = {"op": "compact", "case": f"{len(sources)} rows", "equal": equal, "microseconds": 1e6 * taken}
    yield {**row, "bytes": size, "share_of_copy": size / taken / copied}


def _kernels() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return the Triton form and the definition of each op that has both."""
    records = {record.name: record for record in Catalog.discover().of_kind("kernel")}
    names = [name.removesuffix(".triton") for name in records if name.endswith(".triton")]
    return {
        op: (import_object(records[f"{op}.triton"]), import_object(records[f"{op}.reference"]))
        for op in names
        if f"{op}.reference" in records
    }


def _flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [tensor for part in value for tensor in _flat(part)]
