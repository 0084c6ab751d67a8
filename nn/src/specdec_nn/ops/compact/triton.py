"""The compact op on a GPU: one launch for all layers; under TRITON_INTERPRET=1 the same source runs on a CPU."""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from typing import Any, Final

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_nn.device_copies import to_device
from specdec_nn.ops.compact.reference import Layers, addresses
from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache

check_cache()

MOVES: Final = 16  # moves that a program reads before it writes them
_COLUMNS = tl.constexpr(6)  # of the table of addresses


@triton.jit
def _compact(table, moves, count, page_size, UNIT: tl.constexpr, MOVES: tl.constexpr, SIZE: tl.constexpr):
    """Move all rows of one head of one tensor; `moves` are the sources, then the targets."""
    place, head = table + tl.program_id(0) * _COLUMNS, tl.program_id(1)
    if head < tl.load(place + 5):
        if UNIT == 2:
            base = tl.load(place).to(tl.pointer_type(tl.int16))
        else:
            base = tl.load(place).to(tl.pointer_type(tl.int32))
        page_step, row_step = tl.load(place + 1) // UNIT, tl.load(place + 3) // UNIT
        base += tl.load(place + 2) // UNIT * head
        column = tl.arange(0, SIZE)
        inside = column < tl.load(place + 4) // UNIT
        for first in range(0, count, MOVES):
            n = first + tl.arange(0, MOVES)
            source = tl.load(moves + n, mask=n < count, other=0)
            target = tl.load(moves + count + n, mask=n < count, other=0)
            mask = (n < count)[:, None] & inside[None, :]
            read = base + (source // page_size * page_step + source % page_size * row_step)[:, None] + column[None, :]
            write = base + (target // page_size * page_step + target % page_size * row_step)[:, None] + column[None, :]
            rows = tl.load(read, mask=mask)
            # A target may be a source of these very moves, which another thread has yet to read.
            tl.debug_barrier()
            tl.store(write, rows, mask=mask)
            tl.debug_barrier()


def _plan(layers: Layers) -> tuple[Tensor, int, int, int]:
    """Return the table of addresses on the device, most heads, most units a row, and bytes a unit."""
    rows = addresses(layers)
    unit = 2 if any(value % 4 for row in rows for value in row[:5]) else 4
    table = to_device(np.array(rows, np.int64), layers[0][0].device)
    return table, max(row[5] for row in rows), max(row[4] for row in rows) // unit, unit


def compact(layers: Layers, sources: IntArray, targets: IntArray, plans: dict[Any, Any]) -> None:
    """Move rows in all layers; see `compact_reference` for arguments, shapes and meaning."""
    if not layers:
        return
    if "triton" not in plans:
        plans["triton"] = _plan(layers)
    table, heads, units, unit = plans["triton"]
    moves = to_device(np.concatenate((sources, targets)).astype(np.int64), table.device)
    _compact[(len(table), heads)](
        table, moves, len(sources), layers[0][0].shape[2], UNIT=unit, MOVES=MOVES, SIZE=triton.next_power_of_2(units)
    )


def ptx_cases() -> list[PtxCase]:
    """Return what the kernel is compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    constants = {"UNIT": 4, "MOVES": MOVES, "SIZE": 64}
    return [
        PtxCase(_compact, {"*i64": "table moves"}, constants | {"UNIT": unit}, label=f"{unit} bytes") for unit in (2, 4)
    ]
