"""Pieces of the linear op on a CPU: a block of rows against a block of outputs, in registers; knows no threads.

Weights are read as they lie, one row of inputs for each output. Every sum is 16 chains of fused multiply-adds, one a
lane, over the inputs in order, joined at the end by halves: lanes 8 apart, then 4, 2 and 1. Of the two bfloat16 of a
lane the second comes first, which is the order of vdpbf16ps: that instruction does both in one. That is so in every
variant, so a sum does not depend on which other rows or outputs share its block.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from specdec_nn.ops.cpu import simd
from specdec_nn.ops.cpu.elements import KINDS

_PAIRS: Final = (0, 8, 8, 6, 6, 4, 4, 3, 3)  # weights take one register, not two
_WIDE: Final = (0, 8, 8, 6, 4, 4, 4, 3, 3)
# Outputs of a block by its number of rows: their sums and the weights at hand fill the registers, 32 or 16.
OUTPUTS: Final = _PAIRS if simd.HAS_PAIRS else _WIDE if simd.WIDE else (0, 4, 2, 1, 1)
# Lines of what is further ahead that each group of inputs asks for, by rows.
LINES: Final = _PAIRS if simd.HAS_PAIRS else (1,) * len(OUTPUTS)
ROWS: Final = len(OUTPUTS) - 1  # the most rows of a block
LINE: Final = 64  # bytes of a cache line
VECTOR: Final = 4 * simd.LANES  # bytes of the lanes of one sum


def group_size(name: str) -> int:
    """Return how many inputs are taken together: two a lane where both fit in 32 bits."""
    return simd.LANES * (2 if name == "bfloat16" else 1)


def group_bytes(name: str) -> int:
    """Return the bytes of a group of a row that was spread: float32, but pairs as they are for `simd.pairs`."""
    return VECTOR if _in_pairs(name) else 4 * group_size(name)


def _in_pairs(name: str) -> bool:
    return name == "bfloat16" and simd.HAS_PAIRS


def _parts(b: Any, raw: Any, name: str) -> list[Any]:
    """Return what is multiplied of a group's stored elements; of bfloat16 those in odd places, then in even ones."""
    if name != "bfloat16":
        return [simd.widen(b, raw, name)]
    if simd.HAS_PAIRS:
        return [raw]
    return [
        b.bitcast(b.and_(raw, simd.splat_int(-65536)), simd.VF32),
        b.bitcast(b.shl(raw, simd.splat_int(16)), simd.VF32),
    ]


def _storage(name: str) -> Any:
    return simd.VI32 if name == "bfloat16" else simd.storage(name)


def _merge(b: Any, one: Any, other: Any, half: int) -> Any:
    """Return a vector whose stretches of 2 `half` lanes hold those of one folded to half, then those of the other."""
    if one is None and other is None:
        return None
    one, other = (other if one is None else one), (one if other is None else other)
    lanes = range(simd.LANES)
    mine = [j if j % (2 * half) < half else simd.LANES + j for j in lanes]
    partner = [j + half if j % (2 * half) < half else simd.LANES + j - half for j in lanes]
    shuffled = (b.shuffle_vector(one, other, ir.Constant(simd.VI32, order)) for order in (mine, partner))
    return b.fadd(*shuffled)


def _folded(b: Any, vectors: dict[int, Any]) -> Any:
    """Return one vector whose lane l is the sum of the lanes of vectors[l]; lanes without one are left open."""
    order = [int(f"{place:04b}"[::-1], 2) for place in range(simd.LANES)]
    level = [vectors.get(lane) for lane in order]
    for half in (8, 4, 2, 1):
        level = [_merge(b, one, other, half) for one, other in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def _emit_sums(b: Any, name: str, rows: int, arguments: Any) -> None:
    """Emit sums[m, o] of `rows` rows and `count` outputs, OUTPUTS[rows] at a time."""
    x, x_row, w, w_row, w_last, groups, count, ahead, pace, sums, sums_row, carry, begins, ends = arguments
    outputs = simd.const(OUTPUTS[rows])
    turns = b.sdiv(b.add(count, b.sub(outputs, simd.const(1))), outputs)
    with cgutils.for_range(b, turns) as loop:
        at = b.mul(loop.index, outputs)
        place, target = b.add(w, b.mul(at, w_row)), b.add(sums, b.mul(at, simd.const(4)))
        soon = b.add(ahead, b.mul(b.mul(loop.index, groups), pace))
        kept = b.add(carry, b.mul(loop.index, simd.const(OUTPUTS[rows] * rows * VECTOR)))
        stretch = (kept, begins, ends)
        _emit_block(b, name, rows, (x, x_row, place, w_row, w_last, groups, soon, pace, target, sums_row), stretch)


def _emit_block(b: Any, name: str, rows: int, arguments: Any, stretch: Any) -> None:
    """Emit sums[m, r] of `rows` rows and OUTPUTS[rows] outputs, or the part that a stretch of inputs adds to them."""
    carry, begins, ends = stretch
    x, x_row, w, w_row, w_last, groups, ahead, pace, sums, sums_row = arguments
    outputs, size, group = OUTPUTS[rows], simd.size(name), group_size(name)
    step, x_step = simd.const(group * size), group_bytes(name)
    kind, multiply = (simd.VI32, simd.pairs) if _in_pairs(name) else (simd.VF32, simd.fma)
    x_rows = [b.add(x, b.mul(x_row, simd.const(m))) for m in range(rows)]
    w_rows = []
    for r in range(outputs):  # outputs past the last one repeat it, and are thrown away
        place = b.add(w, b.mul(w_row, simd.const(r)))
        w_rows.append(b.select(b.icmp_unsigned("<", place, w_last), place, w_last))

    # Of what is further ahead, LINES a group come to the second level, however many there are. Where that is one, the
    # processor takes it for a sequence, and fetches those between by itself, and the next outputs come to the first
    # level whole; asking for all would keep its few places for misses busy, for which the loads of weights at hand wait
    # too. AMD's CPUs fetch less by themselves, and are quicker without anything asked for into the first level.
    next_rows = [] if simd.HAS_PAIRS else [b.add(row, b.mul(w_row, simd.const(outputs))) for row in w_rows]

    def add(index: Any, totals: list[Any]) -> list[Any]:
        totals, at = list(totals), b.mul(index, step)
        for n in range(LINES[rows]):
            simd.prefetch(b, ahead, b.add(b.mul(index, pace), simd.const(LINE * n)), level=2)
        for row in next_rows:
            simd.prefetch(b, row, at, level=1)
        raw = [simd.load(b, row, at, _storage(name), size) for row in w_rows]
        weights = [_parts(b, stored, name) for stored in raw]
        for part in range(x_step // VECTOR):
            offset = b.add(b.mul(index, simd.const(x_step)), simd.const(VECTOR * part))
            for m in range(rows):
                value = simd.load(b, x_rows[m], offset, kind, LINE)
                for r in range(outputs):
                    place = m * outputs + r
                    totals[place] = multiply(b, value, weights[r][part], totals[place])
        return totals

    places = [simd.const(VECTOR * n) for n in range(rows * outputs)]
    with b.if_else(b.icmp_signed("!=", begins, simd.const(0))) as (zero, go_on):
        with zero:
            at_zero = b.block
        with go_on:
            known, at_known = [simd.load(b, carry, place, simd.VF32, LINE) for place in places], b.block
    totals = [b.phi(simd.VF32) for _ in places]
    for phi, value in zip(totals, known, strict=True):
        phi.add_incoming(simd.splat_float(0.0), at_zero)
        phi.add_incoming(value, at_known)
    final = simd.counted(b, groups, totals, add)
    with b.if_else(b.icmp_signed("!=", ends, simd.const(0))) as (whole, part):
        with whole:
            _emit_store(b, rows, outputs, final, sums, sums_row)
        with part:
            for value, place in zip(final, places, strict=True):
                simd.store(b, value, carry, place, LINE)


def _emit_store(b: Any, rows: int, outputs: int, totals: list[Any], sums: Any, sums_row: Any) -> None:
    """Emit the folding of totals [m, r], and their stores, float32; a row's may write up to a power of two of them."""
    width = 1 << (outputs - 1).bit_length()
    together = simd.LANES // width
    for first in range(0, rows, together):
        some = range(first, min(first + together, rows))
        lanes = {(m - first) * width + r: totals[m * outputs + r] for m in some for r in range(outputs)}
        folded = _folded(b, lanes)
        for m in some:
            order = ir.Constant(ir.VectorType(simd.I32, width), [(m - first) * width + r for r in range(width)])
            own = folded if width == simd.LANES else b.shuffle_vector(folded, folded, order)
            simd.store(b, own, sums, b.mul(sums_row, simd.const(m)), 4)


def _make_sums(name: str) -> Any:
    @intrinsic
    def sums_of(
        _: Any, rows: Any, x: Any, x_row: Any, w: Any, w_row: Any, w_last: Any, groups: Any, count: Any, ahead: Any,
        pace: Any, sums: Any, sums_row: Any, carry: Any, begins: Any, ends: Any
    ) -> Any:  # fmt: skip
        """Write sums [rows, count] float32, and a few after each row; rows in 1 .. ROWS, distances in bytes.

        x and w are whole groups of inputs, `groups` of them, at least one. They may come in stretches, one call each:
        `begins` is 1 in the first, `ends` in the last, which writes the sums. In between their lanes are in `carry`,
        VECTOR bytes for each row and output, outputs up to a whole block.

        What lies at the address `ahead` and after it comes to the second-level cache meanwhile, a line every `pace`
        bytes and what the processor adds to them.
        """

        def emit(b: Any, values: Any) -> None:
            done = b.append_basic_block("stored")
            switch = b.switch(values[0], done)
            for count in range(1, ROWS + 1):
                case = b.append_basic_block(f"rows{count}")
                switch.add_case(simd.const(count), case)
                b.position_at_end(case)
                _emit_sums(b, name, count, values[1:])
                b.branch(done)
            b.position_at_end(done)

        return simd.procedure(15, emit)

    return sums_of


def _make_finish(name: str) -> Any:
    @intrinsic
    def finish(_: Any, sums: Any, bias: Any, out: Any, count: Any) -> Any:
        """Write out [count] = round(sums + bias); `bias` is an address of stored elements, or 0 for none."""

        def emit(b: Any, values: Any) -> None:
            sums, bias, out, count = values
            size, some = simd.size(name), b.icmp_signed("!=", bias, simd.const(0))
            vectors = b.sdiv(count, simd.const(simd.LANES))
            done = b.mul(vectors, simd.const(simd.LANES))
            for lanes, begin, turns in ((simd.LANES, simd.const(0), vectors), (1, done, b.sub(count, done))):
                stored, wide = (simd.storage(name), simd.VF32) if lanes > 1 else (simd.element(name), simd.F32)
                with cgutils.for_range(b, turns) as loop:
                    index = b.add(begin, b.mul(loop.index, simd.const(lanes)))
                    at, wide_at = b.mul(index, simd.const(size)), b.mul(index, simd.const(4))
                    total = simd.load(b, sums, wide_at, wide, 4)
                    with b.if_else(some) as (then, otherwise):
                        with then:
                            more = simd.widen(b, simd.load(b, bias, at, stored, size), name)
                            added, there = b.fadd(total, more), b.block
                        with otherwise:
                            none = b.block
                    result = b.phi(wide)
                    result.add_incoming(added, there)
                    result.add_incoming(total, none)
                    simd.store(b, simd.narrow(b, result, name), out, at, size)

        return simd.procedure(4, emit)

    return finish


def _make_spread(name: str) -> Any:
    @intrinsic
    def spread(_: Any, source: Any, target: Any, count: Any) -> Any:
        """Copy a row of inputs in the form and order of `sums_of`, with zeros up to a whole group."""

        def emit(b: Any, values: Any) -> None:
            source, target, count = values
            group, size = group_size(name), simd.size(name)
            whole = b.sdiv(count, simd.const(group))
            left = b.sub(count, b.mul(whole, simd.const(group)))

            def copy(index: Any) -> None:
                raw = simd.load(b, b.add(source, b.mul(index, simd.const(group * size))), simd.const(0),
                                _storage(name), size)  # fmt: skip
                for n, part in enumerate(_parts(b, raw, name)):
                    at = b.add(b.mul(index, simd.const(group_bytes(name))), simd.const(VECTOR * n))
                    simd.store(b, part, target, at, 4)

            with cgutils.for_range(b, whole) as loop:
                copy(loop.index)
            with b.if_then(b.icmp_signed(">", left, simd.const(0))):
                begin = b.mul(whole, simd.const(group))
                end = b.add(target, b.mul(whole, simd.const(group_bytes(name))))
                for n in range(group_bytes(name) // VECTOR):
                    simd.store(b, simd.splat_float(0.0), end, simd.const(VECTOR * n), 4)
                with cgutils.for_range(b, left) as loop:
                    at = b.mul(b.add(begin, loop.index), simd.const(size))
                    value, place = simd.load(b, source, at, simd.element(name), size), loop.index
                    if name == "bfloat16" and not simd.HAS_PAIRS:  # odds, then evens
                        even = b.and_(b.xor(place, simd.const(1)), simd.const(1))
                        place = b.add(b.lshr(place, simd.const(1)), b.mul(even, simd.const(simd.LANES)))
                    form = value if _in_pairs(name) else simd.widen(b, value, name)
                    width = size if _in_pairs(name) else 4
                    simd.store(b, form, end, b.mul(place, simd.const(width)), width)

        return simd.procedure(3, emit)

    return spread


MADE: Final[tuple[dict[str, Any], ...]] = tuple(
    {name: make(name) for name in KINDS} for make in (_make_sums, _make_finish, _make_spread)
)
