"""The linear op for small batches on a CPU: weights where the model has them, float32 sums in one fixed order.

Every output element is a sum in the order of `blocks`, then the bias, then one rounding, in every variant of the
kernel. So a row is bit-identical whatever N, its place and its neighbours. Rows go through a panel of outputs in blocks
held in registers; the panel is read from memory once for all rows, straight from bfloat16 where the weights are.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import binding
from numba import carray
from torch import Tensor

from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.elements import BFLOAT16, FLOAT32, HAS_HALF, KINDS
from specdec_nn.ops.cpu.jit import cfunc, njit
from specdec_nn.ops.cpu.outline import call, outlined
from specdec_nn.ops.cpu.team import HEAD, RUN, WORKER, share
from specdec_nn.ops.linear import blocks
from specdec_nn.ops.linear.reference import PackedLinear, linear_reference

# Up to here rows are exact everywhere; above, only where the CPU has no faster bf16 product. Beside `simd.pairs`,
# torch's was measured at 0.93 to 1.37 times the time of this one for 33 to 128 rows, at 0.83 to 0.98 from 256 on.
ROW_EXACT_MAX: Final = 128 if simd.HAS_PAIRS else 32
ROW_CHUNK: Final = 256  # rows a call: bounds the float32 copy of x, keeps it in the second-level cache
PANEL: Final = 48  # outputs that all rows go through before the next ones, and of which a thread has whole ones
_ALIGN: Final = 64
_SUMS_ROW: Final = (PANEL + simd.LANES) * 4  # bytes
_CARRY: Final = blocks.ROWS * _SUMS_ROW
SUMS_BYTES: Final = _CARRY + max(n * (PANEL + blocks.OUTPUTS[n]) for n in range(1, blocks.ROWS + 1)) * blocks.VECTOR
STRETCH: Final = 24 * 1024  # bytes of the rows of a block that all outputs of a panel read: a half of the nearest cache

_KINDS: Final = {getattr(torch, name): index for index, name in enumerate(KINDS)}
_OUTPUTS: Final = blocks.OUTPUTS
_ROWS: Final = blocks.ROWS
_GROUPS: Final = tuple(blocks.group_size(name) for name in KINDS)
_GROUP_BYTES: Final = tuple(blocks.group_bytes(name) for name in KINDS)  # of rows that were spread
_sums_f32, _finish_f32, _spread_f32 = (made["float32"] for made in blocks.MADE)
_sums_bf16, _finish_bf16, _spread_bf16 = (made["bfloat16"] for made in blocks.MADE)
_sums_f16, _finish_f16, _spread_f16 = (made["float16" if HAS_HALF else "float32"] for made in blocks.MADE)


@njit(nogil=True, error_model="numpy")
def spread_bytes(kind: int, inputs: int) -> Any:
    """Return the bytes of one row as `spread_rows` writes it, a multiple of 64."""
    return (inputs + _GROUPS[kind] - 1) // _GROUPS[kind] * _GROUP_BYTES[kind]


@njit(nogil=True, error_model="numpy")
def spread_rows(kind: int, x: int, x_row: int, rows: int, inputs: int, wide: int) -> None:
    """Write rows of x, `x_row` bytes apart, as `panel` wants them, to `wide`, which begins a cache line.

    They become whole groups of inputs, as rows of weights are.
    """
    step = spread_bytes(kind, inputs)
    for r in range(rows):
        if kind == BFLOAT16:
            _spread_bf16(x + r * x_row, wide + r * step, inputs)
        elif kind == FLOAT32:
            _spread_f32(x + r * x_row, wide + r * step, inputs)
        elif HAS_HALF:
            _spread_f16(x + r * x_row, wide + r * step, inputs)


@njit(nogil=True, error_model="numpy")
def _sums(kind: int, rows: int, x: int, x_row: int, w: int, w_row: int, w_last: int, groups: int, count: int,
          ahead: int, pace: int, sums: int) -> None:  # fmt: skip
    """Write the sums of a block of rows, in stretches of inputs that keep the rows in the nearest cache."""
    outputs, group, wide = _OUTPUTS[rows], _GROUPS[kind], _GROUP_BYTES[kind]
    turns, most = (count + outputs - 1) // outputs, max(1, STRETCH // (rows * wide))
    stretches, done, carry = (groups + most - 1) // most, 0, sums + _CARRY
    for n in range(stretches):
        some = groups * (n + 1) // stretches - done
        begins, ends, soon = int(n == 0), int(n == stretches - 1), ahead + turns * done * pace
        if kind == BFLOAT16:
            _sums_bf16(rows, x + done * wide, x_row, w + done * group * 2, w_row, w_last + done * group * 2, some,
                       count, soon, pace, sums, _SUMS_ROW, carry, begins, ends)  # fmt: skip
        elif kind == FLOAT32:
            _sums_f32(rows, x + done * wide, x_row, w + done * group * 4, w_row, w_last + done * group * 4, some,
                      count, soon, pace, sums, _SUMS_ROW, carry, begins, ends)  # fmt: skip
        elif HAS_HALF:
            _sums_f16(rows, x + done * wide, x_row, w + done * group * 2, w_row, w_last + done * group * 2, some,
                      count, soon, pace, sums, _SUMS_ROW, carry, begins, ends)  # fmt: skip
        done += some


def _panel(kind: int, size: int, wide: int, rows: int, inputs: int, w: int, w_row: int, bias: int, out: int,
            outputs: int, first: int, end: int, then: int, then_bytes: int, sums: int) -> None:  # fmt: skip
    """Write outputs first .. end - 1, at most PANEL, of all rows; rows of out are `outputs` elements long.

    wide is of `spread_rows`; w_row the bytes from one output's weights to the next one's; bias an address or 0; then
    where the weights lie that this thread reads after these, and then_bytes how many, or 0; sums SUMS_BYTES of scratch
    memory.
    """
    x_row, passes, count = spread_bytes(kind, inputs), (rows + _ROWS - 1) // _ROWS, end - first
    # What is read next comes to the second-level cache meanwhile, a part in each pass over this panel: memory and
    # arithmetic overlap, which the hardware's own prefetch does not achieve.
    groups = x_row // _GROUP_BYTES[kind]
    place, w_last, part = w + first * w_row, w + (outputs - 1) * w_row, then_bytes // passes
    ahead = then if then_bytes > 0 else place
    for number in range(passes):
        r = rows * number // passes
        some = rows * (number + 1) // passes - r
        turns = (PANEL + _OUTPUTS[some] - 1) // _OUTPUTS[some] * groups
        _sums(kind, some, wide + r * x_row, x_row, place, w_row, w_last, groups, count,
              ahead + number * part, (part + turns - 1) // turns, sums)  # fmt: skip
        for m in range(some):
            at = out + ((r + m) * outputs + first) * size
            more = bias + first * size if bias != 0 else 0
            if kind == BFLOAT16:
                _finish_bf16(sums + m * _SUMS_ROW, more, at, count)
            elif kind == FLOAT32:
                _finish_f32(sums + m * _SUMS_ROW, more, at, count)
            elif HAS_HALF:
                _finish_f16(sums + m * _SUMS_ROW, more, at, count)


@functools.cache
def panel() -> Any:
    """Return `_panel` as a function for `outline.call`; compiled at the first call, then read from the cache."""
    return outlined(_panel)


@njit(nogil=True, error_model="numpy")
def panels(outputs: int) -> Any:
    """Return the number of panels of a layer."""
    return (outputs + PANEL - 1) // PANEL


def _work(block: Any) -> None:
    """Do a thread's share of the panels: `panel`, kind, element size, x, its row, w, its row, bias, out, rows, I, O."""
    a = carray(block, HEAD + 12)
    write, kind, size, x, x_row, w, w_row, bias, out = a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]
    rows, inputs, outputs = a[13], a[14], a[15]
    first, end = share(a, panels(outputs))
    if first >= end:
        return
    # Every thread spreads the rows for itself: less work than waiting for one that does it for all.
    room = np.empty(SUMS_BYTES + rows * spread_bytes(kind, inputs) + _ALIGN, np.uint8)
    sums = (room.ctypes.data + _ALIGN - 1) // _ALIGN * _ALIGN
    wide = sums + SUMS_BYTES
    spread_rows(kind, x, x_row, rows, inputs, wide)
    for t in range(first, end):
        then_bytes = PANEL * w_row if t + 1 < end else 0
        call(write, (kind, size, wide, rows, inputs, w, w_row, bias, out, outputs, t * PANEL,
                     min((t + 1) * PANEL, outputs), w + (t + 1) * PANEL * w_row, then_bytes, sums))  # fmt: skip
    room[0] = 0  # numba drops an array after its last mention, and knows nothing of addresses


@functools.cache
def _compiled() -> Any:
    """Return the worker as a C function."""
    return cfunc(WORKER, _work)


@dataclass(slots=True, eq=False)
class InPlace:
    """A weight as the kernel reads it, which is where it lies wherever its rows are whole.

    weight   [O, I] that the addresses are of; a number of inputs that is no multiple of the kernel's group (16, or 32
             in bfloat16), or inputs that are not next to each other, make a copy
    bias     [O] in the same dtype, or None
    kind     index into the kernel's dtypes
    The addresses are kept because asking a tensor costs a microsecond a call; bytes from output to output are `row`.
    """

    weight: Tensor
    bias: Tensor | None
    kind: int
    worker: int
    panel: int
    dtype: torch.dtype
    element_size: int
    weight_at: int
    row: int
    bias_at: int


def pack(packed: PackedLinear) -> InPlace | None:
    """Find, keep and return where a weight lies; None where this CPU, device or dtype is the reference's to serve.

    Nothing is copied but weights that the kernel cannot read as they lie, see `InPlace`; what is written to others
    later counts.
    """
    weight, bias = packed.weight.detach(), packed.bias
    kind = _KINDS.get(weight.dtype)
    if not simd.HAS_FMA or weight.device.type != "cpu" or kind is None or weight.numel() == 0:
        return None
    missing = -weight.shape[1] % _GROUPS[kind]
    if missing:
        weight = F.pad(weight, (0, missing))[:, :-missing]
    elif weight.stride(1) != 1:
        weight = weight.contiguous()
    bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
    size = weight.element_size()
    form = packed.form = InPlace(
        weight=weight,
        bias=bias,
        kind=kind,
        worker=_compiled().address,
        panel=panel().address,
        dtype=weight.dtype,
        element_size=size,
        weight_at=weight.data_ptr(),
        row=weight.stride(0) * size,
        bias_at=0 if bias is None else bias.data_ptr(),
    )
    return form


def _native_bf16() -> bool:
    """Return whether torch's bfloat16 product is faster than this kernel for many rows: by AMX, or on AMD's CPUs.

    Intel's AVX512-BF16 alone is not: from 48 rows to 512, torch took 1.7 to 1.9 times as long.
    """
    amd = binding.get_host_cpu_name().startswith("znver") and torch.cpu._is_avx512_bf16_supported()
    return bool(torch.cpu._is_amx_tile_supported() or amd)


_NATIVE_BF16: Final = _native_bf16()


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """Return x W^T + b, [N, O] in the dtype of x, from x [N, I]; what the kernel does not serve goes to the reference.

    Each row is a function of that row of x alone for N <= ROW_EXACT_MAX; for larger N too, except in bfloat16 on a CPU
    that has a faster product of its own.
    """
    form: InPlace | None = packed.form or pack(packed)
    rows = x.shape[0]
    if form is None or x.dtype is not form.dtype or x.device.type != "cpu":
        return linear_reference(x, packed)
    if rows > ROW_EXACT_MAX and _NATIVE_BF16 and x.dtype is torch.bfloat16:
        return linear_reference(x, packed)
    stride, unit = x.stride()
    if unit != 1:
        x = x.contiguous()
        stride = x.shape[1]
    inputs, outputs, size = packed.in_features, packed.out_features, form.element_size
    out = torch.empty(rows, outputs, dtype=x.dtype)
    x_at, out_at = x.data_ptr(), out.data_ptr()
    for start in range(0, rows, ROW_CHUNK):
        count = min(rows - start, ROW_CHUNK)
        at, to = x_at + start * stride * size, out_at + start * outputs * size
        RUN(form.worker, form.panel, form.kind, size, at, stride * size, form.weight_at, form.row, form.bias_at, to,
            count, inputs, outputs)  # fmt: skip
    return out
