"""Pieces of LLVM IR that the numba kernels are built from: vectors of 16 lanes, loads, conversions, fused multiply-add.

Kernels that promise bit-equal rows spell their arithmetic out here, because what a compiler vectorises or contracts on
its own may differ between two variants of one loop. LLVM splits vectors of 16 float32 where registers are smaller.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils

from specdec_nn.ops.cpu.choice import CHOSEN, FEATURES

LANES: Final = 16
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
VF16, VF32, VI16, VI32 = (ir.VectorType(element, LANES) for element in (F16, F32, I16, I32))


ARM64: Final = platform.machine().lower() in ("aarch64", "arm64")
HAS_FMA: Final = ARM64 or "fma" in FEATURES  # without it, llvm.fma becomes a library call per lane
HAS_HALF: Final = ARM64 or "f16c" in FEATURES  # without it, converting a half needs a runtime that numba does not link
WIDE: Final = "avx512f" in FEATURES  # 32 registers of 16 lanes
HAS_PAIRS: Final = CHOSEN == "avx512_bf16"  # whether there is `pairs`


def const(value: int) -> Any:
    """Return a 64-bit integer constant."""
    return ir.Constant(I64, value)


def splat_int(value: int) -> Any:
    """Return 16 lanes of a 32-bit integer constant."""
    return ir.Constant(VI32, [value] * LANES)


def splat_float(value: float) -> Any:
    """Return 16 lanes of a float32 constant."""
    return ir.Constant(VF32, [value] * LANES)


def broadcast(b: Any, scalar: Any) -> Any:
    """Return 16 lanes of a float32 or 32-bit integer value."""
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(first, undefined, splat_int(0))


def first(b: Any, vector: Any) -> Any:
    """Return the first lane."""
    return b.extract_element(vector, ir.Constant(I32, 0))


def address(b: Any, base: Any, offset: Any, element: Any) -> Any:
    """Return a typed pointer at `offset` bytes from `base`, an address held in a 64-bit integer."""
    raw = b.gep(b.inttoptr(base, I8.as_pointer()), [offset])
    return b.bitcast(raw, element.as_pointer())


def load(b: Any, base: Any, offset: Any, element: Any, align: int) -> Any:
    """Load a value of type `element` at `offset` bytes from `base`; align in bytes, that of the memory's elements."""
    return b.load(address(b, base, offset, element), align=align)


def store(b: Any, value: Any, base: Any, offset: Any, align: int) -> None:
    """Store a value at `offset` bytes from `base`."""
    b.store(value, address(b, base, offset, value.type), align=align)


def counted(b: Any, count: Any, values: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Emit a loop of count >= 1 turns carrying values in registers: values = body(index, values)."""
    entry, turn, done = b.block, b.append_basic_block("turn"), b.append_basic_block("done")
    b.branch(turn)
    b.position_at_end(turn)
    index = b.phi(I64)
    carried = [b.phi(value.type) for value in values]
    results = body(index, carried)
    following = b.add(index, const(1))
    for phi, first, result in zip([index, *carried], [const(0), *values], [following, *results], strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(result, b.block)
    b.cbranch(b.icmp_signed("<", following, count), turn, done)
    b.position_at_end(done)
    return results


def cases(b: Any, value: Any, bodies: dict[int, Callable[[], None]]) -> None:
    """Emit a choice: the body of the case that `value` is, and nothing where it is none of them."""
    end = b.append_basic_block("end")
    switch = b.switch(value, end)
    for number, body in bodies.items():
        case = b.append_basic_block(f"case{number}")
        switch.add_case(const(number), case)
        b.position_at_end(case)
        body()
        b.branch(end)
    b.position_at_end(end)


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z of 16 float32 lanes, rounded once."""
    kind = ir.FunctionType(VF32, [VF32, VF32, VF32])
    return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.fma.v16f32"), [x, y, z])


def pairs(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Return z + x y of 16 lanes of two bfloat16 each: the second product is added first, and rounded, then the first.

    The bits are those of two `fma`, but that subnormal numbers count as zero.
    """
    kind = ir.FunctionType(VF32, [VF32, VI32, VI32])
    return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512"), [z, x, y])


def prefetch(b: Any, base: Any, offset: Any, level: int) -> None:
    """Ask for a line into the cache of a level, 1 or 2; past the end of the data too: a wrong guess costs nothing."""
    place = b.inttoptr(b.add(base, offset), I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [place, I32(0), I32(4 - level), I32(1)])


def _same(kind: Any, value: int) -> Any:
    """Return an integer constant of a scalar or vector type."""
    return ir.Constant(kind, [value] * LANES if isinstance(kind, ir.VectorType) else value)


def widen(b: Any, raw: Any, name: str) -> Any:
    """Return float32 of a loaded element, or of 16, of type `element(name)` or `storage(name)`."""
    wide, bits = (VF32, VI32) if isinstance(raw.type, ir.VectorType) else (F32, I32)
    if name == "bfloat16":
        return b.bitcast(b.shl(b.zext(raw, bits), _same(bits, 16)), wide)
    return b.fpext(raw, wide) if name == "float16" else raw


def narrow(b: Any, value: Any, name: str) -> Any:
    """Return a float32, or 16, rounded to nearest even in the type `element(name)` or `storage(name)`."""
    vector = isinstance(value.type, ir.VectorType)
    if name == "float32":
        return value
    if name == "float16":
        return b.fptrunc(value, VF16 if vector else F16)
    kind = VI32 if vector else I32
    bits = b.bitcast(value, kind)
    odd = b.and_(b.lshr(bits, _same(kind, 16)), _same(kind, 1))
    rounded = b.lshr(b.add(b.add(bits, _same(kind, 0x7FFF)), odd), _same(kind, 16))
    # The sum would carry some NaNs over into infinities or zeros.
    nan = b.fcmp_unordered("uno", value, value)
    return b.trunc(b.select(nan, _same(kind, 0x7FC0), rounded), VI16 if vector else I16)


def element(name: str) -> Any:
    """Return the type of a stored element of a torch dtype's name."""
    return {"float32": F32, "bfloat16": I16, "float16": F16}[name]


def size(name: str) -> int:
    """Return the bytes of a stored element."""
    return 4 if name == "float32" else 2


def storage(name: str) -> Any:
    """Return the vector type of 16 stored elements of a torch dtype's name."""
    return {"float32": VF32, "bfloat16": VI16, "float16": VF16}[name]


def procedure(arguments: int, emit: Callable[[Any, Any], None]) -> Any:
    """Return (signature, code generator) of an intrinsic with no result and so many 64-bit integer arguments."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        emit(b, values)
        return context.get_dummy_value()

    return types.void(*[types.int64] * arguments), codegen
