"""How the fused pass calls the linear op's compiled panels; the only place that knows their form."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

import torch

from specdec_nn.ops.cpu.jit import njit
from specdec_nn.ops.cpu.outline import call
from specdec_nn.ops.linear import numba as linear
from specdec_nn.ops.linear.numba import PANEL, ROW_CHUNK, SUMS_BYTES


def most_rows(dtype: torch.dtype) -> int:
    """Return the most rows for which a row of a product does not feel its neighbours."""
    return linear.ROW_EXACT_MAX if linear._NATIVE_BF16 and dtype is torch.bfloat16 else 1 << 30


def panel_address() -> int:
    """Return the address of the linear op's own compiled function."""
    address: int = linear.panel().address
    return address


def scratch_bytes(kind: int, rows: int, inputs: int) -> int:
    """Return the bytes of one thread, from the beginning of a cache line on, for products of up to so many inputs."""
    spread: int = linear.spread_bytes(kind, inputs)
    return SUMS_BYTES + min(rows, ROW_CHUNK) * spread


@njit(nogil=True, error_model="numpy")
def spread(kind: int, size: int, x: int, rows: int, inputs: int, scratch: int) -> None:
    """Write rows of x [rows, inputs] to scratch memory as `part` wants them."""
    linear.spread_rows(kind, x, inputs * size, rows, inputs, scratch + SUMS_BYTES)


@njit(nogil=True, error_model="numpy")
def part(panel: int, kind: int, size: int, scratch: int, rows: int, inputs: int, weight: int, row: int, bias: int,
         out: int, outputs: int, t: int, then: Any) -> None:  # fmt: skip
    """Write part t of the outputs of a linear layer for all rows that were spread; `panel` is of `panel_address`.

    `then` is of `lies`, for what this thread reads next: that is fetched meanwhile.
    """
    call(panel, (kind, size, scratch + SUMS_BYTES, rows, inputs, weight, row, bias, out, outputs, t * PANEL,
                 min((t + 1) * PANEL, outputs), then[0], then[1], scratch))  # fmt: skip


@njit(nogil=True, error_model="numpy")
def parts(outputs: int) -> Any:
    """Return the number of parts of a linear layer."""
    return linear.panels(outputs)


@njit(nogil=True, error_model="numpy")
def lies(weight: int, row: int, outputs: int, t: int) -> Any:
    """Return where the weights of part t of a linear layer lie, and their bytes: 0 where there is no such part."""
    return weight + t * PANEL * row, max(0, min(PANEL, outputs - t * PANEL)) * row
