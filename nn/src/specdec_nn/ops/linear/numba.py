"""The linear op for small batches on a CPU: weights in tiles, float32 accumulation in one fixed order.

Every output element is one chain of fused multiply-adds over i = 0 .. I - 1 from zero, then the bias, then one
rounding, in every variant of the kernel. So a row is bit-identical whatever N, its place and its neighbours. Rows go
through a tile in blocks held in registers; a tile is read once a block, straight from bfloat16 where the weights are.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import binding, ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.jit import cfunc
from specdec_nn.ops.cpu.team import HEAD, RUN, WORKER, share
from specdec_nn.ops.linear.reference import PackedLinear, linear_reference

ROW_EXACT_MAX: Final = 32  # up to here rows are exact everywhere; above, only where the CPU has no faster bf16 product
ROW_CHUNK: Final = 256  # rows a call: bounds the float32 copy of x, keeps it in the second-level cache

# Rows and vectors of 16 outputs that the accumulators of one block take: 24 of 32 wide registers, or half of 16 narrow.
BLOCK, VECTORS = (8, 3) if simd.WIDE else (4, 1)
TILE: Final = VECTORS * simd.LANES


def _inputs_a_group(name: str) -> int:
    return 2 if name == "bfloat16" else 1


def _emit_weights(b: Any, name: str, w: Any, group: Any) -> list[list[Any]]:
    """Emit the float32 weights [input of the group][vector]; a group is 2 inputs in bfloat16, else 1."""
    weights: list[list[Any]] = [[] for _ in range(_inputs_a_group(name))]
    for v in range(VECTORS):
        if name == "bfloat16":
            # Two inputs lie side by side in 32 bits: one load and two cheap operations instead of four.
            at = b.add(b.mul(group, simd.const(TILE * 4)), simd.const(v * simd.LANES * 4))
            pairs = simd.load(b, w, at, simd.VI32, 4)
            weights[0].append(b.bitcast(b.shl(pairs, simd.splat_int(16)), simd.VF32))
            weights[1].append(b.bitcast(b.and_(pairs, simd.splat_int(-65536)), simd.VF32))
        else:
            size = simd.size(name)
            at = b.add(b.mul(group, simd.const(TILE * size)), simd.const(v * simd.LANES * size))
            weights[0].append(simd.widen(b, simd.load(b, w, at, simd.storage(name), size), name))
    return weights


def _emit_block(b: Any, name: str, rows: int, x: Any, stride: Any, w: Any, groups: Any) -> list[Any]:
    """Emit [m, v] = sum over i of x[m, i] w[i, v], flat; x float32, rows `stride` apart; w a tile as packed."""
    x_rows = [b.add(x, b.mul(stride, simd.const(4 * m))) for m in range(rows)]
    together = _inputs_a_group(name)
    part = simd.LANES * simd.size(name) * together  # bytes of one vector of a group

    def one_group(group: Any, sums: list[Any]) -> list[Any]:
        sums = list(sums)
        # The next tile comes to the second-level cache meanwhile: memory and arithmetic overlap, which the hardware's
        # own prefetch, ending at each page, does not achieve.
        ahead = b.mul(b.add(groups, group), simd.const(VECTORS * part))
        for v in range(VECTORS):
            simd.prefetch(b, w, b.add(ahead, simd.const(v * part)))
        for n, weights in enumerate(_emit_weights(b, name, w, group)):
            for m in range(rows):
                at = b.add(b.mul(group, simd.const(4 * together)), simd.const(4 * n))
                value = simd.broadcast(b, simd.load(b, x_rows[m], at, simd.F32, 4))
                for v in range(VECTORS):
                    sums[m * VECTORS + v] = simd.fma(b, value, weights[v], sums[m * VECTORS + v])
        return sums

    return simd.counted(b, groups, [simd.splat_float(0.0)] * (rows * VECTORS), one_group)


def _emit_store(b: Any, name: str, sums: list[Any], bias: Any, out: Any, pitch: Any) -> None:
    """Emit out[m, :TILE] = round(sums[m] + bias[:TILE]); rows of out are `pitch` bytes apart."""
    size = simd.size(name)
    for index, total in enumerate(sums):
        m, v = divmod(index, VECTORS)
        added = b.fadd(total, simd.load(b, bias, simd.const(v * simd.LANES * 4), simd.VF32, 4))
        place = b.add(b.mul(pitch, simd.const(m)), simd.const(v * simd.LANES * size))
        simd.store(b, simd.narrow(b, added, name), out, place, size)


def _emit_tile(b: Any, name: str, arguments: Any) -> None:
    """Emit one block of rows through one tile, by the variant for that number of rows."""
    rows, x, x_stride, groups, w, bias, out, out_stride, room = arguments
    size, element = simd.size(name), simd.element(name)
    # A last tile with less room is written to the stack and copied from there, not past the end of a row.
    spare = b.ptrtoint(cgutils.alloca_once(b, ir.ArrayType(element, BLOCK * TILE)), simd.I64)
    whole = b.icmp_signed(">=", room, simd.const(TILE))
    target = b.select(whole, out, spare)
    pitch = b.mul(b.select(whole, out_stride, simd.const(TILE)), simd.const(size))
    stored = b.append_basic_block("stored")
    switch = b.switch(rows, stored)
    for count in range(1, BLOCK + 1):
        case = b.append_basic_block(f"rows{count}")
        switch.add_case(simd.const(count), case)
        b.position_at_end(case)
        _emit_store(b, name, _emit_block(b, name, count, x, x_stride, w, groups), bias, target, pitch)
        b.branch(stored)
    b.position_at_end(stored)
    with b.if_then(b.not_(whole), likely=False):
        with cgutils.for_range(b, rows) as row, cgutils.for_range(b, room) as column:
            index = b.add(b.mul(row.index, simd.const(TILE)), column.index)
            value = simd.load(b, spare, b.mul(index, simd.const(size)), element, size)
            index = b.add(b.mul(row.index, out_stride), column.index)
            simd.store(b, value, out, b.mul(index, simd.const(size)), size)


def _make_tile(name: str) -> Any:
    """Return the intrinsic for a dtype's name; see its arguments in `_emit_tile`, rows in 1 .. BLOCK."""

    @intrinsic
    def tile(
        _: Any, rows: Any, x: Any, x_stride: Any, groups: Any, w: Any, bias: Any, out: Any, out_stride: Any, room: Any
    ) -> Any:
        def codegen(context: Any, b: Any, _: Any, arguments: Any) -> Any:
            _emit_tile(b, name, arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return tile


def _make_widen(name: str) -> Any:
    """Return the intrinsic widen(source, target, count): stored 16-bit elements to float32."""

    @intrinsic
    def widen(_: Any, source: Any, target: Any, count: Any) -> Any:
        def codegen(context: Any, b: Any, _: Any, arguments: Any) -> Any:
            source, target, count = arguments
            with cgutils.for_range(b, count) as loop:
                raw = simd.load(b, source, b.mul(loop.index, simd.const(2)), simd.element(name), 2)
                simd.store(b, simd.widen(b, raw, name), target, b.mul(loop.index, simd.const(4)), 4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), codegen

    return widen


_tile_f32, _tile_bf16, _tile_f16 = (_make_tile(name) for name in ("float32", "bfloat16", "float16"))
_widen_bf16, _widen_f16 = (_make_widen(name) for name in ("bfloat16", "float16"))


def _work_f32(block: Any) -> None:
    """Run one thread's share of the tiles: x, its stride, w, bias, out, rows, inputs, outputs; addresses and sizes."""
    a = carray(block, HEAD + 8)
    x, stride, w, bias, out, rows, inputs, outputs = a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]
    first, end = share(a, (outputs + TILE - 1) // TILE)
    for t in range(first, end):
        for r in range(0, rows, BLOCK):
            _tile_f32(min(BLOCK, rows - r), x + r * stride * 4, stride, inputs, w + t * TILE * inputs * 4,
                      bias + t * TILE * 4, out + (r * outputs + t * TILE) * 4, outputs, outputs - t * TILE)  # fmt: skip


def _work_bf16(block: Any) -> None:
    a = carray(block, HEAD + 8)
    x, stride, w, bias, out, rows, inputs, outputs = a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]
    first, end = share(a, (outputs + TILE - 1) // TILE)
    # Every thread widens the rows for itself: less work than waiting for one that does it for all. The loops name the
    # array itself, and not an address taken earlier, so that numba keeps it alive for them.
    groups = (inputs + 1) // 2
    wide = np.empty((rows, 2 * groups), np.float32)
    wide[:, 2 * groups - 1] = 0.0  # the partner of an odd last input
    for r in range(rows):
        _widen_bf16(x + r * stride * 2, wide.ctypes.data + r * groups * 8, inputs)
    for t in range(first, end):
        for r in range(0, rows, BLOCK):
            _tile_bf16(min(BLOCK, rows - r), wide.ctypes.data + r * groups * 8, 2 * groups, groups,
                       w + t * TILE * groups * 4, bias + t * TILE * 4, out + (r * outputs + t * TILE) * 2,
                       outputs, outputs - t * TILE)  # fmt: skip


def _work_f16(block: Any) -> None:
    a = carray(block, HEAD + 8)
    x, stride, w, bias, out, rows, inputs, outputs = a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]
    first, end = share(a, (outputs + TILE - 1) // TILE)
    wide = np.empty((rows, inputs), np.float32)
    for r in range(rows):
        _widen_f16(x + r * stride * 2, wide.ctypes.data + r * inputs * 4, inputs)
    for t in range(first, end):
        for r in range(0, rows, BLOCK):
            _tile_f16(min(BLOCK, rows - r), wide.ctypes.data + r * inputs * 4, inputs, inputs,
                      w + t * TILE * inputs * 2, bias + t * TILE * 4, out + (r * outputs + t * TILE) * 2,
                      outputs, outputs - t * TILE)  # fmt: skip


_WORKERS: Final = {torch.float32: _work_f32, torch.bfloat16: _work_bf16}
if simd.HAS_HALF:
    _WORKERS[torch.float16] = _work_f16


@functools.cache
def _compiled(dtype: torch.dtype) -> Any:
    """Return the worker of a dtype as a C function; compiled at the first call, then read from numba's cache."""
    return cfunc(WORKER, _WORKERS[dtype])


@dataclass(slots=True, eq=False)
class Tiles:
    """The weight as the kernel reads it.

    data     [tiles, I, TILE, 1] in the dtype of the weight, zero past the last output; bfloat16 [tiles, I / 2, TILE, 2]
    bias     [tiles, TILE] float32, zeros where the layer has none
    worker   address of the compiled function
    dtype, element_size, data_at, bias_at    of the weight; kept because asking a tensor costs a microsecond a call
    """

    data: Tensor
    bias: Tensor
    worker: int
    dtype: torch.dtype = field(init=False)
    element_size: int = field(init=False)
    data_at: int = field(init=False)
    bias_at: int = field(init=False)

    def __post_init__(self) -> None:
        """Read dtype and addresses."""
        self.dtype, self.element_size = self.data.dtype, self.data.element_size()
        self.data_at, self.bias_at = self.data.data_ptr(), self.bias.data_ptr()


def pack(packed: PackedLinear) -> Tiles | None:
    """Make, keep and return the tiles of a weight; None where this CPU, device or dtype is the reference's to serve.

    The tiles are a copy: a weight that changes in place later must be packed anew (`packed.tiles = None`).
    """
    weight = packed.weight
    if not simd.HAS_FMA or weight.device.type != "cpu" or weight.dtype not in _WORKERS or weight.numel() == 0:
        return None
    outputs, inputs = weight.shape
    together = 2 if weight.dtype is torch.bfloat16 else 1
    count, whole, groups = -(-outputs // TILE), outputs // TILE, -(-inputs // together)
    with torch.no_grad():
        if inputs % together:
            weight = F.pad(weight, (0, 1))
        data = torch.empty(count, groups, TILE, together, dtype=weight.dtype)
        data[:whole] = weight[: whole * TILE].view(whole, TILE, groups, together).transpose(1, 2)
        if whole < count:
            rest = F.pad(weight[whole * TILE :], (0, 0, 0, count * TILE - outputs))
            data[whole] = rest.view(TILE, groups, together).transpose(0, 1)
        bias = torch.zeros(count, TILE, dtype=torch.float32)
        if packed.bias is not None:
            bias.view(-1)[:outputs] = packed.bias
    tiles = Tiles(data, bias, _compiled(weight.dtype).address)
    packed.tiles = tiles
    return tiles


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
    tiles = packed.tiles or pack(packed)
    rows = x.shape[0]
    if tiles is None or x.dtype is not tiles.dtype or x.device.type != "cpu":
        return linear_reference(x, packed)
    if rows > ROW_EXACT_MAX and _NATIVE_BF16 and x.dtype is torch.bfloat16:
        return linear_reference(x, packed)
    stride, unit = x.stride()
    if unit != 1:
        x = x.contiguous()
        stride = x.shape[1]
    inputs, outputs, size = packed.in_features, packed.out_features, tiles.element_size
    out = torch.empty(rows, outputs, dtype=x.dtype)
    x_at, out_at = x.data_ptr(), out.data_ptr()
    for start in range(0, rows, ROW_CHUNK):
        count = min(rows - start, ROW_CHUNK)
        RUN(
            tiles.worker,
            x_at + start * stride * size,
            stride,
            tiles.data_at,
            tiles.bias_at,
            out_at + start * outputs * size,
            count,
            inputs,
            outputs,
        )
    return out
