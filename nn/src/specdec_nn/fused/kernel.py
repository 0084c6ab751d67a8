"""The compiled pass: every thread of a team runs all layers, and waits for the others between their parts.

It reads the records of `tables` and knows nothing of modules. Rows, heads, parts of outputs and tasks of attention are
shared out by number; who does what does not show in the result.
"""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

import functools
from typing import Any, Final

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from specdec_nn.fused import elementwise
from specdec_nn.fused.product import lies, part, parts, spread
from specdec_nn.fused.tables import LAYER, layer_at, step_at
from specdec_nn.ops.attention.call import CALL, call_at
from specdec_nn.ops.attention.numba import run_merge
from specdec_nn.ops.cpu import outline
from specdec_nn.ops.cpu.elements import clear, copy_bytes
from specdec_nn.ops.cpu.jit import cfunc, njit
from specdec_nn.ops.cpu.records import integers
from specdec_nn.ops.cpu.team import HEAD, WORKER, _ask, share
from specdec_nn.ops.linear.numba import PANEL, ROW_CHUNK

LAYER_BYTES: Final = LAYER.itemsize
CALL_BYTES: Final = CALL.itemsize


@intrinsic
def _wait(_: Any, barrier: Any) -> Any:
    """Call void f(void) at an address."""

    def codegen(context: Any, b: Any, _: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        b.call(b.inttoptr(values[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@njit(nogil=True, error_model="numpy")
def _begins(block: Any, weight: int, row: int, outputs: int) -> Any:
    """Return where this thread's first part of a linear layer lies, and its bytes, 0 if it has none."""
    first, end = share(block, parts(outputs))
    return lies(weight, row, outputs if first < end else 0, first)


@njit(nogil=True, error_model="numpy")
def _project(
    step: Any, block: Any, scratch: int, x: int, inputs: int, weight: int, row: int, bias: int, out: int, outputs: int,
    following: Any
) -> None:  # fmt: skip
    """Do this thread's parts of one linear layer; what it reads next, after all linear layers here, is `following`."""
    kind, size = step.kind, step.size
    first, end = share(block, parts(outputs))
    for r in range(0, step.rows, ROW_CHUNK):
        rows = min(ROW_CHUNK, step.rows - r)
        spread(kind, size, x + r * inputs * size, rows, inputs, scratch)
        for t in range(first, end):
            then = lies(weight, row, outputs, t + 1) if t + 1 < end else following
            part(step.panel, kind, size, scratch, rows, inputs, weight, row, bias, out + r * outputs * size, outputs, t,
                 then)  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _head_weights(step: Any, layer: Any, t: int) -> Any:
    """Return where part t of queries, keys and values lies, counted through, and its bytes."""
    q_outputs, outputs = step.heads * step.dims, step.kv_heads * step.dims
    q_count, count = parts(q_outputs), parts(outputs)
    if t < q_count:
        return lies(layer.q, layer.q_row, q_outputs, t)
    if t < q_count + count:
        return lies(layer.k, layer.k_row, outputs, t - q_count)
    return lies(layer.v, layer.v_row, outputs, t - q_count - count)


@njit(nogil=True, error_model="numpy")
def _heads_begin(step: Any, layer: Any, block: Any) -> Any:
    """Return where this thread's first part of queries, keys and values lies, and its bytes, 0 if it has none."""
    first, end = share(block, parts(step.heads * step.dims) + 2 * parts(step.kv_heads * step.dims))
    if layer.q == 0 or first >= end:
        return 0, 0
    return _head_weights(step, layer, first)


@njit(nogil=True, error_model="numpy")
def _project_heads(step: Any, layer: Any, block: Any, scratch: int, following: Any) -> None:
    """Do this thread's parts of queries, keys and values."""
    q_outputs, outputs = step.heads * step.dims, step.kv_heads * step.dims
    q_count, count = parts(q_outputs), parts(outputs)
    first, end = share(block, q_count + 2 * count)
    kind, size, inputs = step.kind, step.size, step.inputs
    for r in range(0, step.rows, ROW_CHUNK):
        rows, at = min(ROW_CHUNK, step.rows - r), r * outputs * size
        spread(kind, size, step.asked + r * inputs * size, rows, inputs, scratch)
        for t in range(first, end):
            then = _head_weights(step, layer, t + 1) if t + 1 < end else following
            if t < q_count:
                part(step.panel, kind, size, scratch, rows, inputs, layer.q, layer.q_row, layer.q_bias,
                     step.q + r * q_outputs * size, q_outputs, t, then)  # fmt: skip
            elif t < q_count + count:
                part(step.panel, kind, size, scratch, rows, inputs, layer.k, layer.k_row, layer.k_bias, step.k + at,
                     outputs, t - q_count, then)  # fmt: skip
            else:
                part(step.panel, kind, size, scratch, rows, inputs, layer.v, layer.v_row, layer.v_bias, step.v + at,
                     outputs, t - q_count - count, then)  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _project_gate(step: Any, layer: Any, block: Any, scratch: int, following: Any) -> None:
    """Do this thread's parts of gate and up, by turns, and the activation of what they give."""
    kind, size, inputs, inner = step.kind, step.size, step.hidden, layer.inner
    first, end = share(block, parts(inner))
    for r in range(0, step.rows, ROW_CHUNK):
        rows = min(ROW_CHUNK, step.rows - r)
        spread(kind, size, step.normed + r * inputs * size, rows, inputs, scratch)
        gate, up = step.gate + r * inner * size, step.up + r * inner * size
        for t in range(first, end):
            part(step.panel, kind, size, scratch, rows, inputs, layer.gate, layer.gate_row, layer.gate_bias, gate,
                 inner, t, lies(layer.up, layer.up_row, inner, t))  # fmt: skip
            then = lies(layer.gate, layer.gate_row, inner, t + 1) if t + 1 < end else following
            part(step.panel, kind, size, scratch, rows, inputs, layer.up, layer.up_row, layer.up_bias, up, inner, t,
                 then)  # fmt: skip
            for m in range(rows):
                at = (m * inner + t * PANEL) * size
                elementwise.gate(kind, step.activation, gate + at, up + at, min(PANEL, inner - t * PANEL))


@njit(nogil=True, error_model="numpy")
def _turn(step: Any, layer: Any, row: int, head: int, weight: int, epsilon: float) -> None:
    """Norm a head at an address if there is a norm, and turn it if the layer has a rotary embedding."""
    if weight != 0:
        elementwise.norm(step.kind, step.style, head, weight, head, step.dims, epsilon)
    if layer.rope >= 0:
        ropes, at = integers(step.ropes, 2 * layer.rope + 2), row * 2 * step.half * step.size
        elementwise.rotate(step.kind, head, ropes[2 * layer.rope] + at, ropes[2 * layer.rope + 1] + at, step.half)


@njit(nogil=True, error_model="numpy")
def _heads(step: Any, layer: Any, call: Any, block: Any) -> None:
    """Norm and turn this thread's heads of queries and keys, and write keys and values into their pages."""
    head_bytes, each = step.dims * step.size, step.heads + step.kv_heads
    slots = integers(step.slots, step.rows)
    first, end = share(block, step.rows * each)
    for n in range(first, end):
        row, h = n // each, n % each - step.heads
        if h < 0:
            place = step.q + (row * step.heads + h + step.heads) * head_bytes
            _turn(step, layer, row, place, layer.q_norm, layer.q_norm_epsilon)
            continue
        at = (row * step.kv_heads + h) * head_bytes
        _turn(step, layer, row, step.k + at, layer.k_norm, layer.k_norm_epsilon)
        if slots[row] >= 0:
            page, offset = slots[row] // call.page_size, slots[row] % call.page_size
            k = call.k_pages + page * call.k_page + h * call.k_page_head + offset * call.k_key
            v = call.v_pages + page * call.v_page + h * call.v_page_head + offset * call.v_key
            copy_bytes(step.k + at, k, head_bytes)
            copy_bytes(step.v + at, v, head_bytes)


@njit(nogil=True, error_model="numpy")
def _attend(step: Any, call: Any, call_place: int, block: Any, scratch: int) -> None:
    """Do this thread's tasks of attention; all wait where chunks are to be joined."""
    first, end = share(block, call.item_count * call.kv_heads)
    for number in range(first, end):
        outline.call(step.task, (call_place, number, scratch, step.partials))
    if call.merge_count > 0:
        _wait(step.barrier)
        first, end = share(block, call.merge_count)
        for number in range(first, end):
            run_merge(call, number, step.partials)


@njit(nogil=True, error_model="numpy")
def _add(step: Any, block: Any, weight: int, epsilon: float, factor: float) -> None:
    """Add what a part of a layer gave to this thread's rows of the residual stream, after a norm of its own if any."""
    first, end = share(block, step.rows)
    for r in range(first, end):
        at = r * step.hidden * step.size
        if weight != 0:
            elementwise.norm(step.kind, step.style, step.delta + at, weight, step.delta + at, step.hidden, epsilon)
        elementwise.add(step.kind, step.state + at, step.delta + at, step.hidden, factor)


@njit(nogil=True, error_model="numpy")
def _norm(step: Any, block: Any, weight: int, epsilon: float, out: int) -> None:
    """Norm this thread's rows of the residual stream."""
    first, end = share(block, step.rows)
    for r in range(first, end):
        at = r * step.hidden * step.size
        elementwise.norm(step.kind, step.style, step.state + at, weight, out + at, step.hidden, epsilon)


@njit(nogil=True, error_model="numpy")
def _tap(step: Any, block: Any, place: int) -> None:
    """Copy this thread's rows of the residual stream, if somebody wants them."""
    first, end = share(block, step.rows)
    if place != 0 and first < end:
        at = first * step.hidden * step.size
        copy_bytes(step.state + at, place + at, (end - first) * step.hidden * step.size)


@njit(nogil=True, error_model="numpy")
def _run_layer(step: Any, layer: Any, later: Any, call_place: int, block: Any, scratch: int) -> None:
    """Run one layer, from the residual stream to the residual stream; `later` is the one after it."""
    call, width, hidden = call_at(call_place), step.heads * step.dims, step.hidden
    _tap(step, block, layer.tap)
    if layer.in_norm != 0:
        _norm(step, block, layer.in_norm, layer.in_norm_epsilon, step.normed)
    _wait(step.barrier)
    _project_heads(step, layer, block, scratch, _begins(block, layer.o, layer.o_row, hidden))
    _wait(step.barrier)
    _heads(step, layer, call, block)
    _wait(step.barrier)
    _attend(step, call, call_place, block, scratch)
    _wait(step.barrier)
    _project(step, block, scratch, step.mixed, width, layer.o, layer.o_row, layer.o_bias, step.delta, hidden,
             _begins(block, layer.gate, layer.gate_row, layer.inner))  # fmt: skip
    _wait(step.barrier)
    _add(step, block, layer.attention_norm, layer.attention_norm_epsilon, layer.residual)
    _norm(step, block, layer.mlp_norm, layer.mlp_norm_epsilon, step.normed)
    _wait(step.barrier)
    _project_gate(step, layer, block, scratch, _begins(block, layer.down, layer.down_row, hidden))
    _wait(step.barrier)
    _project(step, block, scratch, step.gate, layer.inner, layer.down, layer.down_row, layer.down_bias, step.delta,
             hidden, _heads_begin(step, later, block))  # fmt: skip
    _wait(step.barrier)
    _add(step, block, layer.out_norm, layer.out_norm_epsilon, layer.residual)


def _work(arguments: Any) -> None:
    """Run the pass on one thread; the one argument of its own is the address of a STEP record."""
    block = carray(arguments, HEAD + 1)
    step = step_at(block[HEAD])
    thread = _ask(block[0])
    scratch = step.scratch + thread * step.scratch_bytes
    if thread == 0:
        blank, width = integers(step.blank, step.blank_count), step.heads * step.dims * step.size
        for n in range(len(blank)):
            clear(step.mixed + blank[n] * width, width)
    for n in range(step.layer_count):
        at = step.layers + n * LAYER_BYTES
        _run_layer(step, layer_at(at), layer_at(at + LAYER_BYTES), step.calls + n * CALL_BYTES, block, scratch)
    _tap(step, block, layer_at(step.layers + step.layer_count * LAYER_BYTES).tap)
    if step.out_norm != 0:
        _norm(step, block, step.out_norm, step.out_epsilon, step.out)


@functools.cache
def worker() -> Any:
    """Return the compiled pass as a C function."""
    return cfunc(WORKER, _work)
