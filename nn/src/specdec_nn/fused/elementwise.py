"""Intrinsics of the fused pass between its products: norms, rotary embedding, gated activation, residual sums.

Each works on one row at an address, in the roundings of transformers' modules: what a module returns is rounded to the
model's dtype, and so is each product and sum of the rotary embedding. Sums run in one fixed order, so that a row does
not feel its neighbours.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from specdec_nn.ops.attention.simd import KINDS
from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.softmax import _exp2, _fold

LOG2E: Final = 1.4426950408889634
PLAIN, ONE_PLUS = 0, 1  # styles of a norm's weight: round(x r) w, or x r (1 + w)
SILU, GELU_TANH = 0, 1


def _per_kind(b: Any, kind: Any, emit: Callable[[str], None]) -> None:
    """Emit one case for each stored type; `kind` is an index into KINDS."""
    end = b.append_basic_block("end")
    switch = b.switch(kind, end)
    for index, name in enumerate(KINDS):
        case = b.append_basic_block(name)
        switch.add_case(simd.const(index), case)
        b.position_at_end(case)
        emit(name)
        b.branch(end)
    b.position_at_end(end)


class _Lanes:
    """16 elements of a row, or one of its last: loads, stores and constants of that width."""

    def __init__(self, b: Any, name: str, index: Any, *, wide: bool) -> None:
        self._b, self.name, self._index, self.wide = b, name, index, wide

    def _place(self, base: Any, size: int) -> Any:
        return self._b.add(base, self._b.mul(self._index, simd.const(size)))

    def load(self, base: Any) -> Any:
        """Return stored elements as float32."""
        kind = simd.storage(self.name) if self.wide else simd.element(self.name)
        size = simd.size(self.name)
        return simd.widen(self._b, simd.load(self._b, self._place(base, size), simd.const(0), kind, size), self.name)

    def load_float(self, base: Any) -> Any:
        """Return float32 elements."""
        kind = simd.VF32 if self.wide else simd.F32
        return simd.load(self._b, self._place(base, 4), simd.const(0), kind, 4)

    def store(self, value: Any, base: Any) -> None:
        """Round and store."""
        size = simd.size(self.name)
        simd.store(self._b, simd.narrow(self._b, value, self.name), self._place(base, size), simd.const(0), size)

    def rounded(self, value: Any) -> Any:
        """Return float32 rounded to the stored type."""
        return simd.widen(self._b, simd.narrow(self._b, value, self.name), self.name)

    def const(self, value: float) -> Any:
        return simd.splat_float(value) if self.wide else ir.Constant(simd.F32, value)

    def spread(self, scalar: Any) -> Any:
        """Return a float32 scalar in every lane."""
        return simd.broadcast(self._b, scalar) if self.wide else scalar

    def exp2(self, value: Any) -> Any:
        """Return 2^value."""
        if self.wide:
            return _exp2(self._b, value)
        return self._b.extract_element(_exp2(self._b, simd.broadcast(self._b, value)), ir.Constant(simd.I32, 0))


def _each(b: Any, name: str, count: Any, body: Callable[[_Lanes], None]) -> None:
    """Emit body over `count` elements: 16 at a time, then what is left one by one."""
    vectors = b.sdiv(count, simd.const(simd.LANES))
    with cgutils.for_range(b, vectors) as loop:
        body(_Lanes(b, name, b.mul(loop.index, simd.const(simd.LANES)), wide=True))
    done = b.mul(vectors, simd.const(simd.LANES))
    with cgutils.for_range(b, b.sub(count, done)) as loop:
        body(_Lanes(b, name, b.add(done, loop.index), wide=False))


def _sum_of_squares(b: Any, name: str, x: Any, count: Any) -> Any:
    sums = {wide: cgutils.alloca_once(b, simd.VF32 if wide else simd.F32) for wide in (True, False)}
    b.store(simd.splat_float(0.0), sums[True])
    b.store(ir.Constant(simd.F32, 0.0), sums[False])

    def add(lanes: _Lanes) -> None:
        value, place = lanes.load(x), sums[lanes.wide]
        b.store(b.fadd(b.load(place), b.fmul(value, value)), place)

    _each(b, name, count, add)
    whole = _fold(b, b.load(sums[True]), lambda b, x, y: b.fadd(x, y))
    return b.fadd(b.extract_element(whole, ir.Constant(simd.I32, 0)), b.load(sums[False]))


@intrinsic
def norm(_: Any, kind: Any, style: Any, x: Any, weight: Any, out: Any, count: Any, epsilon: Any) -> Any:
    """Write the RMS norm of a row x [count] to `out`, which may be x; weight [count] float32, epsilon float32."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        kind, style, x, weight, out, count, epsilon = values
        plain = b.icmp_signed("==", style, simd.const(PLAIN))

        def emit(name: str) -> None:
            mean = b.fdiv(_sum_of_squares(b, name, x, count), b.sitofp(count, simd.F32))
            root = cgutils.get_or_insert_function(b.module, ir.FunctionType(simd.F32, [simd.F32]), "llvm.sqrt.f32")
            scale = b.fdiv(ir.Constant(simd.F32, 1.0), b.call(root, [b.fadd(mean, epsilon)]))

            def one(lanes: _Lanes) -> None:
                value, factor = b.fmul(lanes.load(x), lanes.spread(scale)), lanes.load_float(weight)
                value = b.select(plain, lanes.rounded(value), value)
                factor = b.select(plain, factor, b.fadd(factor, lanes.const(1.0)))
                lanes.store(b.fmul(value, factor), out)

            _each(b, name, count, one)

        _per_kind(b, kind, emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, types.float32), codegen


@intrinsic
def rotate(_: Any, kind: Any, x: Any, cos: Any, sin: Any, half: Any) -> Any:
    """Turn a head x [2 half] in place by cos and sin [2 half], all of the stored type; halves are partners."""

    def emit(b: Any, values: Any) -> None:
        kind, x, cos, sin, half = values

        def turn(name: str) -> None:
            span = b.mul(half, simd.const(simd.size(name)))

            def one(lanes: _Lanes) -> None:
                firsts, seconds = (x, cos, sin), [b.add(base, span) for base in (x, cos, sin)]
                (low, low_cos, low_sin), (high, high_cos, high_sin) = (
                    [lanes.load(base) for base in bases] for bases in (firsts, seconds)
                )
                left = b.fsub(lanes.rounded(b.fmul(low, low_cos)), lanes.rounded(b.fmul(high, low_sin)))
                right = b.fadd(lanes.rounded(b.fmul(high, high_cos)), lanes.rounded(b.fmul(low, high_sin)))
                lanes.store(left, x)
                lanes.store(right, b.add(x, span))

            _each(b, name, half, one)

        _per_kind(b, kind, turn)

    return simd.procedure(5, emit)


@intrinsic
def gate(_: Any, kind: Any, activation: Any, x: Any, factor: Any, count: Any) -> Any:
    """Write act(x) * factor into x [count]."""

    def emit(b: Any, values: Any) -> None:
        kind, activation, x, factor, count = values
        silu = b.icmp_signed("==", activation, simd.const(SILU))

        def multiply(name: str) -> None:
            def one(lanes: _Lanes) -> None:
                value = lanes.load(x)
                # GELU with tanh is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), SiLU is x sigmoid(x).
                cube = b.fmul(b.fmul(b.fmul(value, value), value), lanes.const(0.044715))
                inner = b.fmul(b.fadd(value, cube), lanes.const(1.5957691216057308))
                power = lanes.exp2(b.fmul(b.select(silu, value, inner), lanes.const(-LOG2E)))
                result = lanes.rounded(b.fdiv(value, b.fadd(lanes.const(1.0), power)))
                lanes.store(b.fmul(result, lanes.load(factor)), x)

            _each(b, name, count, one)

        _per_kind(b, kind, multiply)

    return simd.procedure(5, emit)


@intrinsic
def add(_: Any, kind: Any, x: Any, more: Any, count: Any, factor: Any) -> Any:
    """Write x + factor * more into x [count]; factor float32."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        kind, x, more, count, factor = values

        def emit(name: str) -> None:
            def one(lanes: _Lanes) -> None:
                scaled = lanes.rounded(b.fmul(lanes.load(more), lanes.spread(factor)))
                lanes.store(b.fadd(lanes.load(x), scaled), x)

            _each(b, name, count, one)

        _per_kind(b, kind, emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, types.float32), codegen
