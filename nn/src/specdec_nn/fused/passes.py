"""Layers of one shape with their tables and buffers, as one call of the compiled pass; it knows no model or head."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_nn.cache.arena import KVArena
from specdec_nn.fused import kernel, product
from specdec_nn.fused.parts import Block, Norm, Shape
from specdec_nn.fused.tables import LAYER, STEP
from specdec_nn.fused.unfit import Unfit
from specdec_nn.ops.attention.call import CALL
from specdec_nn.ops.attention.numba import scratch_bytes, task
from specdec_nn.ops.attention.plan import UNBOUNDED, Plan, plan
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_nn.ops.constants import LOG2E
from specdec_nn.ops.cpu import simd, softmax
from specdec_nn.ops.cpu.elements import KINDS
from specdec_nn.ops.cpu.records import address_of
from specdec_nn.ops.cpu.team import RUN, run_by_numba

LINE: Final = 64  # bytes of a cache line, which every buffer begins with
# A structured dtype has names; those of any dtype may be None.
PLANNED: Final = CALL.names[CALL.names.index("page_size") : CALL.names.index("scale")]  # type: ignore[index,union-attr]


def barrier() -> int:
    """Return the address of the function in which a team of torch's threads meets; raises Unfit where there is none."""
    if RUN is run_by_numba:
        raise Unfit("there is no GNU OpenMP, whose threads wait for each other between the parts of a layer")
    try:
        function = ctypes.CDLL("libgomp.so.1").GOMP_barrier
    except (OSError, AttributeError) as error:
        raise Unfit(f"GNU OpenMP has no barrier to be called: {error}") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Pass:
    """Some layers, as one function of the residual stream, rotary tables and the tables of attention."""

    def __init__(self, shape: Shape, blocks: Sequence[Block], norm: Norm | None) -> None:
        """Lay the tables out, and have the pass compiled; raises Unfit where it cannot run here.

        norm  the last one; None: the residual stream is the result
        """
        self._shape, self._blocks, self._norm = shape, blocks, norm
        self._windows = list(dict.fromkeys(UNBOUNDED if b.window is None else b.window for b in blocks))
        self.ropes = list(dict.fromkeys(b.rope for b in blocks if b.rope is not None))
        self._size = shape.dtype.itemsize
        self._kind = {getattr(torch, name): i for i, name in enumerate(KINDS)}[shape.dtype]
        columns = -(-shape.dims // simd.LANES) * simd.LANES
        self._record = (columns + softmax.RECORD) * 4
        self._inner = max(block.inner for block in blocks)
        self._layers = self._layer_table()
        self._calls = self._call_table(columns)
        self._step = self._step_record()
        self._arena: ReferenceType[KVArena] | None = None
        self._step_at = self._step.ctypes.data
        self._worker = kernel.worker().address

    def _layer_table(self) -> npt.NDArray[Any]:
        layers = np.zeros(len(self._blocks) + 1, LAYER)
        for n, block in enumerate(self._blocks):
            for place, norm in block.norms.items():
                layers[n][place], layers[n][place + "_epsilon"] = norm.weight.data_ptr(), norm.epsilon
            for place, (_, form) in block.products.items():
                layers[n][place], layers[n][place + "_row"] = form.weight_at, form.row
                layers[n][place + "_bias"] = form.bias_at
            layers[n]["inner"], layers[n]["residual"] = block.inner, block.residual
            layers[n]["rope"] = -1 if block.rope is None else self.ropes.index(block.rope)
        return layers

    def _call_table(self, columns: int) -> npt.NDArray[Any]:
        shape = self._shape
        calls = np.zeros(len(self._blocks), CALL)
        head, heads, kv_heads = shape.dims * self._size, shape.heads, shape.kv_heads
        same = {"kind": self._kind, "size": self._size, "q_row": heads * head, "q_head": head}
        same |= {"k_row": kv_heads * head, "k_head": head, "v_row": kv_heads * head, "v_head": head}
        same |= {"heads": heads, "kv_heads": kv_heads, "group": heads // kv_heads, "record": self._record}
        same |= {"dims": shape.dims, "width": shape.dims, "columns": columns}
        for name, value in same.items():
            calls[name] = value
        for n, block in enumerate(self._blocks):
            calls[n]["window"] = UNBOUNDED if block.window is None else block.window
            calls[n]["sinks"] = 0 if block.sinks is None else block.sinks.data_ptr()
            calls[n]["scale"] = block.scaling if block.softcap else block.scaling * LOG2E
            calls[n]["softcap"] = block.softcap or 0.0
        return calls

    def _step_record(self) -> npt.NDArray[Any]:
        shape = self._shape
        step = np.zeros(1, STEP)
        same: dict[str, Any] = {"kind": self._kind, "size": self._size, "hidden": shape.hidden, "heads": shape.heads}
        same |= {"inputs": shape.inputs, "kv_heads": shape.kv_heads, "dims": shape.dims, "style": shape.style}
        same |= {"activation": shape.activation, "barrier": barrier()}
        if self._norm is not None:
            same |= {"out_norm": self._norm.weight.data_ptr(), "out_epsilon": self._norm.epsilon}
        same |= {"panel": product.panel_address(), "task": task().address}
        same |= {"layer_count": len(self._blocks), "layers": address_of(self._layers)}
        same |= {"calls": address_of(self._calls)}
        for name, value in same.items():
            step[name] = value
        return step

    def serves(self, rows: int) -> bool:
        """Return whether so many rows may run here: as many as the linear op keeps exact."""
        return rows <= product.most_rows(self._shape.dtype)

    def run(
        self,
        state: Tensor,
        asked: Tensor | None,
        turns: Sequence[Tensor],
        step: AttentionStep,
        arena: KVArena,
        taps: Mapping[int, Tensor] | None = None,
    ) -> Tensor:
        """Run the residual stream [N, H] through all layers, writing keys and values as `step` has them.

        state  is changed in place
        asked  [N, inputs] what queries, keys and values of the first layer are made of; None where it has a norm for it
        turns  cosines and sines [N, width] of each rotary table, by turns, next to each other in memory
        taps   [N, H] by layer: where the residual stream at its input goes; the number of layers is that after the last

        Returns final states [N, H], which are `state` itself without a last norm. All tensors are contiguous and in the
        dtype of the pass.
        """
        out = state if self._norm is None else torch.empty_like(state)
        self._layers["tap"] = 0
        for k, place in (taps or {}).items():
            self._layers["tap"][k] = place.data_ptr()
        rope_table = np.array([part.data_ptr() for part in turns], np.int64)
        plans = [self._plan(step, window) for window in self._windows]
        self._bind(arena)
        buffer = self._place(len(state), plans)
        fields = {"state": state.data_ptr(), "out": out.data_ptr(), "ropes": address_of(rope_table)}
        fields["half"] = turns[0].shape[-1] // 2 if turns else 0
        fields["asked"] = self._step["normed"][0] if asked is None else asked.data_ptr()
        for name, value in fields.items():
            self._step[name] = value
        RUN(self._worker, self._step_at)
        del buffer  # and not before
        return out

    def _plan(self, step: AttentionStep, window: int) -> Plan:
        known: Plan | None = step.plans.get(("numba", window))
        if known is None:
            known = step.plans[("numba", window)] = plan(step, window, self._shape.kv_heads, torch.get_num_threads())
        return known

    def _bind(self, arena: KVArena) -> None:
        """Read the addresses of an arena's pages."""
        if self._arena is not None and self._arena() is arena:
            return
        example = torch.empty(1, self._shape.kv_heads, self._shape.dims, dtype=self._shape.dtype)
        for n, block in enumerate(self._blocks):
            for name, pages in zip("kv", arena.layer(block.arena, example, example), strict=True):
                strides = (stride * self._size for stride in pages.stride()[:3])
                fields = (f"{name}_pages", f"{name}_page", f"{name}_page_head", f"{name}_key")
                for field, value in zip(fields, (pages.data_ptr(), *strides), strict=True):
                    self._calls[n][field] = value
        self._arena = ref(arena)

    def _place(self, rows: int, plans: Sequence[Plan]) -> Tensor:
        """Make the buffers of a call, and write their addresses and the plans of attention into the tables."""
        shape, threads, size = self._shape, torch.get_num_threads(), self._size
        width, kv_width = shape.heads * shape.dims, shape.kv_heads * shape.dims
        for window, cut in zip(self._windows, plans, strict=True):
            own = self._calls["window"] == window if len(plans) > 1 else slice(None)
            for name, number in zip(PLANNED, cut.numbers, strict=True):
                self._calls[name][own] = number
        wide = product.scratch_bytes(self._kind, rows, max(shape.hidden, shape.inputs, width, self._inner))
        scratch = -(-max(wide, scratch_bytes(self._calls[0])) // LINE) * LINE
        widths = {"normed": shape.hidden, "q": width, "k": kv_width, "v": kv_width, "mixed": width}
        widths |= {"delta": shape.hidden, "gate": self._inner, "up": self._inner}
        sizes = {name: rows * each * size for name, each in widths.items()}
        sizes |= {"scratch": threads * scratch}
        sizes |= {"partials": max(cut.partials for cut in plans) * shape.heads * self._record}
        buffer = torch.empty(sum(sizes.values()) + (len(sizes) + 1) * LINE, dtype=torch.uint8)
        at = buffer.data_ptr()
        for name, each in sizes.items():
            at = -(-at // LINE) * LINE
            self._step[name] = at
            at += each
        for name in ("q", "k", "v"):
            self._calls[name] = self._step[name][0]
        self._calls["out"] = self._step["mixed"][0]
        first = plans[0]
        values = {"rows": rows, "scratch_bytes": scratch, "slots": address_of(first.slots)}
        values |= {"blank": address_of(first.blank), "blank_count": len(first.blank)}
        for name, value in values.items():
            self._step[name] = value
        return buffer
