"""A recognised decoder with its tables and buffers: from ids to final states in one call of the compiled pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_nn.cache.arena import KVArena
from specdec_nn.fused import kernel
from specdec_nn.fused.recognise import Stack
from specdec_nn.fused.tables import F, L, S
from specdec_nn.fused.unfit import Unfit
from specdec_nn.fused.watch import Watch
from specdec_nn.ops.attention import simd as attention_simd
from specdec_nn.ops.attention.plan import UNBOUNDED, Plan, plan
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_nn.ops.attention.tiles import KEYS, SCORES
from specdec_nn.ops.cpu import softmax
from specdec_nn.ops.cpu.team import RUN, run_by_numba
from specdec_nn.ops.linear import numba as products

LINE: Final = 64  # bytes of a cache line, which every buffer begins with


def barrier() -> int:
    """Return the address of the function in which a team of torch's threads meets; raises Unfit where there is none."""
    if RUN is run_by_numba:
        raise Unfit("there is no GNU OpenMP, whose threads wait for each other between the parts of a layer")
    try:
        function = ctypes.CDLL("libgomp.so.1").GOMP_barrier
    except (OSError, AttributeError) as error:
        raise Unfit(f"GNU OpenMP has no barrier to be called: {error}") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class FusedStack:
    """The layers of one model, as one function of ids, positions and the tables of attention."""

    def __init__(self, stack: Stack) -> None:
        """Lay the tables out, and have the pass compiled; raises Unfit where it cannot run here."""
        self.stack = stack
        self._barrier = barrier()
        self._watch = Watch(stack.decoder)
        self._kind = {getattr(torch, name): i for i, name in enumerate(attention_simd.KINDS)}[stack.dtype]
        self._size = stack.dtype.itemsize
        self._windows = list(dict.fromkeys(UNBOUNDED if b.window is None else b.window for b in stack.blocks))
        self._ropes = list(dict.fromkeys(b.rope for b in stack.blocks if b.rope is not None))
        self._inner = max(block.inner for block in stack.blocks)
        self._layers, self._floats = self._tables()
        self._arena: ReferenceType[KVArena] | None = None
        self._strides: tuple[int, ...] = ()
        self._example = torch.empty(1, stack.kv_heads, stack.dims, dtype=stack.dtype)
        self._worker = kernel.worker()

    def _tables(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        stack = self.stack
        layers = np.zeros((len(stack.blocks) + 1, len(L)), np.int64)
        floats = np.zeros((len(stack.blocks) + 1, len(F)), np.float64)
        for n, block in enumerate(stack.blocks):
            for place, norm in block.norms.items():
                layers[n, L[place]], floats[n, F[place]] = norm.weight.data_ptr(), norm.epsilon
            for place, (_, tiles) in block.products.items():
                layers[n, L[place]], layers[n, L[place + "_BIAS"]] = tiles.data_at, tiles.bias_at
            window = UNBOUNDED if block.window is None else block.window
            layers[n, L.INNER], layers[n, L.WINDOW] = block.inner, window
            layers[n, L.PLAN] = self._windows.index(window)
            layers[n, L.ROPE] = -1 if block.rope is None else self._ropes.index(block.rope)
            layers[n, L.SINKS] = 0 if block.sinks is None else block.sinks.data_ptr()
            floats[n, F.SCALE] = block.scaling if block.softcap else block.scaling * softmax.LOG2E
            floats[n, F.SOFTCAP], floats[n, F.RESIDUAL] = block.softcap or 0.0, block.residual
        floats[-1, F.IN_NORM] = stack.norm.epsilon
        return layers, floats

    def serves(self, rows: int, step: AttentionStep) -> bool:
        """Return whether a call of so many rows runs here: those whose rows are exact, but for mutual attention.

        A model whose modules were exchanged or got hooks since is left to its modules, with one line in the log.
        """
        return step.seg_mutual is None and rows <= self.most_rows and self._watch.untouched()

    @property
    def most_rows(self) -> int:
        """The most rows of a call; above, torch's own products are faster."""
        return products.ROW_EXACT_MAX if products._NATIVE_BF16 and self.stack.dtype is torch.bfloat16 else 1 << 30

    def _bind(self, arena: KVArena) -> None:
        """Read the addresses of an arena's pages."""
        if self._arena is not None and self._arena() is arena:
            return
        for n, block in enumerate(self.stack.blocks):
            k, v = arena.layer(block.arena, self._example, self._example)
            self._layers[n, L.K_PAGES], self._layers[n, L.V_PAGES] = k.data_ptr(), v.data_ptr()
        self._strides = tuple(stride * self._size for pages in (k, v) for stride in pages.stride()[:3])
        self._arena = ref(arena)

    def run(
        self, ids: Tensor, positions: Tensor, step: AttentionStep, arena: KVArena, taps: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run rows ids [N] int64 at positions [N] int64 through all layers, writing keys and values as `step` says.

        Returns final states [N, H], and the residual stream [N, H] at the input of each layer of `taps`, where the
        number of layers is that after the last one. Call it in inference mode.
        """
        stack, rows = self.stack, len(ids)
        self._bind(arena)
        state = stack.embedding(ids)
        if stack.factor != 1.0:
            state = state * stack.factor
        state = state.contiguous()
        tapped = {k: torch.empty_like(state) for k in taps}
        self._layers[:, L.TAP] = 0
        for k, place in tapped.items():
            self._layers[k, L.TAP] = place.data_ptr()
        ropes, half = self._turns(state, positions)
        cuts = [self._cut(step, window) for window in self._windows]
        out = torch.empty_like(state)
        table = np.zeros(len(S), np.int64)
        kept = self._fill(table, cuts, rows, step.page_size)
        rope_table = np.array([part.data_ptr() for pair in ropes for part in pair], np.int64)
        table[[S.STATE, S.OUT, S.HALF]] = state.data_ptr(), out.data_ptr(), half
        table[[S.ROPES, S.ROPE_TABLE]] = len(ropes), rope_table.ctypes.data
        RUN(self._worker, table.ctypes.data)
        del kept
        return out, tapped

    def _turns(self, state: Tensor, positions: Tensor) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """Return cosines and sines [N, width] of each type of layer, and half the width."""
        at = positions.unsqueeze(0)
        found = []
        for kind in self._ropes:
            cos, sin = self.stack.rotary(state, at, kind) if kind else self.stack.rotary(state, at)
            found.append(tuple(part[0].to(state.dtype).contiguous() for part in (cos, sin)))
        return found, found[0][0].shape[-1] // 2 if found else 0

    def _cut(self, step: AttentionStep, window: int) -> Plan:
        cut: Plan | None = step.plans.get(("numba", window))
        if cut is None:
            cut = plan(step, window, self.stack.kv_heads, torch.get_num_threads())
            step.plans[("numba", window)] = cut
        return cut

    def _fill(self, table: npt.NDArray[np.int64], cuts: Sequence[Plan], rows: int, page_size: int) -> Any:
        """Fill the step's table; returns what it points into."""
        stack, threads = self.stack, torch.get_num_threads()
        width, kv_width = stack.heads * stack.dims, stack.kv_heads * stack.dims
        widths = [stack.hidden, width, kv_width, kv_width, width, stack.hidden, self._inner, self._inner]
        sizes = [-(-rows * each * self._size // LINE) * LINE for each in widths]
        columns = -(-stack.dims // 16) * 16
        record = columns + softmax.RECORD
        chunk = min(rows, products.ROW_CHUNK)
        wide = chunk * (max(stack.hidden, width, self._inner) + 1) * 4
        group = stack.heads // stack.kv_heads
        room = max(
            KEYS * (stack.dims + columns) + SCORES + cut.longest * group * (stack.dims + 2 * record)
            + cut.tiles * KEYS * (columns + cut.longest * group)
            for cut in cuts
        )  # fmt: skip
        scratch = -(-max(wide, room * 4) // LINE) * LINE
        partials = max(cut.partials for cut in cuts) * stack.heads * record * 4
        buffer = torch.empty(sum(sizes) + threads * scratch + partials + LINE, dtype=torch.uint8)
        start = -(-buffer.data_ptr() // LINE) * LINE
        at = np.cumsum([start, *sizes, threads * scratch]).tolist()
        places = np.empty((len(cuts), 2, rows), np.int64)
        plans = np.array([
            [cut.items.ctypes.data, len(cut.items), cut.merges.ctypes.data, len(cut.merges), cut.paths.ctypes.data,
             len(cut.paths), own[0].ctypes.data, own[1].ctypes.data, cut.tiles]
            for cut, own in zip(cuts, places, strict=True)
        ], np.int64)  # fmt: skip
        cut = cuts[0]
        values = {
            S.KIND: self._kind, S.SIZE: self._size, S.ROWS: rows, S.HIDDEN: stack.hidden, S.HEADS: stack.heads,
            S.KV_HEADS: stack.kv_heads, S.DIMS: stack.dims, S.LAYERS: len(stack.blocks), S.STYLE: stack.style,
            S.ACTIVATION: stack.activation, S.FINAL_NORM: stack.norm.weight.data_ptr(),
            S.NORMED: at[0], S.Q: at[1], S.K: at[2], S.V: at[3], S.MIXED: at[4], S.DELTA: at[5], S.GATE: at[6],
            S.UP: at[7], S.SCRATCH: at[8], S.PARTIALS: at[9], S.SCRATCH_BYTES: scratch,
            S.SLOTS: cut.slots.ctypes.data, S.BLANK: cut.blank.ctypes.data, S.BLANKS: len(cut.blank),
            S.PAGES: cut.page_table.ctypes.data, S.SEGMENTS: cut.page_table.shape[0],
            S.PAGE_COLUMNS: cut.page_table.shape[1], S.PAGE_SIZE: page_size,
            S.BARRIER: self._barrier, S.LAYER_TABLE: self._layers.ctypes.data,
            S.FLOAT_TABLE: self._floats.ctypes.data, S.PLAN_TABLE: plans.ctypes.data, S.PLANS: len(plans),
        }  # fmt: skip
        for column, value in values.items():
            table[column] = value
        table[S.K_PAGE : S.V_KEY + 1] = self._strides
        return buffer, places, plans, cuts
