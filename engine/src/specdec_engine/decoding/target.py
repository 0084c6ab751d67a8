"""The target model: forwards over flat ragged batches, hidden-state taps, and what proposers may use of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_core.first_layers import FirstLayers
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import TargetInfo
from specdec_core.target_keys import TargetKeys
from specdec_engine.decoding.device_drafts import DeviceDrafts
from specdec_engine.decoding.first_layers import SharedLayers
from specdec_engine.decoding.flat_batch import FlatBatch, build, places_of_drafts, places_of_trees, split
from specdec_engine.decoding.target_keys import SharedKeys
from specdec_engine.requests.request import Request
from specdec_engine.requests.rope_lengths import RopeLengths
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_nn.cache.arena import KVArena
from specdec_nn.device_copies import all_to_device
from specdec_nn.hf.first_layers import first_layers
from specdec_nn.hf.model import FlatModel
from specdec_nn.turns import lock_of

_NOTHING: AbstractContextManager[None] = nullcontext()
Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class ForwardOutput:
    """Results of one step, in the order of the scheduled rows.

    logits  [sum of item.wants, V] in the model's dtype, or None where no row wanted any
    hidden  [sum of rows, H] final hidden states, or None if not tapped
    aux     [sum of rows, layers, H] residual-stream states, or None if not tapped
    rows    rows that ran, padding included
    scored  [sum of len(item.scored), H] final hidden states of those rows, or None if there are none
    """

    logits: Tensor | None
    hidden: Tensor | None
    aux: Tensor | None
    rows: int
    scored: Tensor | None = None


class Target:
    """A transformers causal language model, run by flat batches. It is the `TargetHandle` of proposers."""

    def __init__(
        self,
        flat: FlatModel,
        info: TargetInfo,
        *,
        ancestor_bits: Callable[..., Tensor],
        max_num_seqs: int,
        decode_width: int | None,
        prefill_chunk_size: int,
        tokenizer: Any | None = None,
    ) -> None:
        """Take the bound model; `ancestor_bits` is the kernel of that op, `tokenizer` the one in use if any."""
        self._flat: FlatModel | None = flat
        self.lock = lock_of(flat.model)  # held by whoever runs the model, or changes what runs on it
        self.tokenizer = tokenizer
        self.info = info
        self.max_num_seqs = max_num_seqs
        self.decode_width = decode_width
        self.prefill_chunk_size = prefill_chunk_size
        self.flat.binding.batched_experts = decode_width is not None
        self.ancestor_bits = ancestor_bits
        tables = flat.row_tables
        self.rope_lengths = RopeLengths.of(tables, info.max_model_len)
        self.arena = flat.new_arena(0)
        self._final: Tensor | None = None
        self._tap_hidden = False
        self._aux_layers: tuple[int, ...] = ()
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._shared: list[SharedLayers | SharedKeys] = []

    @property
    def flat(self) -> FlatModel:
        """The bound model; raises TargetError once the target is closed."""
        if self._flat is None:
            message = "the engine of this target is closed, and its model is no longer held"
            raise TargetError(message)
        return self._flat

    @property
    def model(self) -> nn.Module:
        """The transformers model."""
        return self.flat.model

    @property
    def device(self) -> torch.device:
        """Device of the model's inputs."""
        return self.flat.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's hidden states."""
        return self.flat.dtype

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that the KV arena holds."""
        return self.arena.num_tokens

    @property
    def embedding_weight(self) -> Tensor:
        """Rows of the input embedding [V, H], without the factor that some families put on them."""
        return self.flat.embedding_weight

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n]."""
        return self.flat.embed(ids)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], through the model's own head code."""
        return self.flat.compute_logits(hidden)

    def new_arena(self, num_tokens: int) -> KVArena:
        """Return a KV arena for a drafter, for that many tokens, on the target's device."""
        return self.flat.new_rows(num_tokens)

    def first_layers(self, count: int, rows: int, kernels: Kernels) -> FirstLayers:
        """Return the first layers over the very pages that this target writes, for a drafter; see `lent`."""
        shared = SharedLayers(first_layers(self.flat, count, kernels), lambda: self.arena)
        self._shared.append(shared)
        return shared

    def target_keys(self, kernels: Kernels) -> TargetKeys:
        """Return the keys and values of the very pages that this target writes, for a drafter; see `lent`."""
        shared = SharedKeys(self.flat, lambda: self.arena)
        self._shared.append(shared)
        return shared

    def lent(self, running: Sequence[Request]) -> AbstractContextManager[None]:
        """Return a context in which drafters may work on the pages of these requests."""
        if not self._shared:
            return _NOTHING
        return self._lent(running)

    @contextmanager
    def _lent(self, running: Sequence[Request]) -> Iterator[None]:
        with ExitStack() as stack:
            for shared in self._shared:
                stack.enter_context(shared.lent(running))
            yield

    def set_budget(self, num_tokens: int) -> None:
        """Replace the KV arena by an empty one for that many tokens."""
        self.arena = self.flat.new_arena(num_tokens, self.max_num_seqs)

    def pause(self) -> None:
        """Take the taps off and drop the KV arena and the states of the last step; `set_budget` and `tap` go on."""
        self.tap(hidden=False, aux_layers=())
        self._final = None
        self.arena = KVArena(0, self.arena.device)

    def close(self) -> None:
        """Pause, and let the model go, whoever still holds this target; a second time is a no-op."""
        if self._flat is not None:
            self.pause()
            self._flat, self._shared = None, []

    def tap(self, *, hidden: bool, aux_layers: Sequence[int]) -> None:
        """Record final hidden states and the residual stream R_k at the given layers in every later forward.

        Raises TargetError for a k outside 0 .. number of layers.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._tap_hidden, self._aux_layers = hidden, tuple(aux_layers)
        if hidden:
            self._hooks.append(self.flat.decoder.register_forward_hook(self._keep_final))
        self.flat.tap(aux_layers)

    def _keep_final(self, module: nn.Module, args: Any, output: Any) -> None:
        self._final = output[0][0] if isinstance(output, tuple) else output.last_hidden_state[0]

    @contextmanager
    def _final_states(self, items: Sequence[ScheduledRows]) -> Iterator[None]:
        """Record final hidden states, tapped or not, in forwards of items whose prompt is scored."""
        hook = None
        if not self._tap_hidden and any(item.scored for item in items):
            hook = self.flat.decoder.register_forward_hook(self._keep_final)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    def forward(self, items: Sequence[ScheduledRows], drafts: DeviceDrafts | None = None) -> ForwardOutput:
        """Run the rows of all items, whose pages must have been reserved in the arena.

        `drafts` are those of the step where they are on a device (`ScheduledRows.first_draft`).
        """
        # (index of the item, offset in it) decides the order of results, whatever forward a piece ran in.
        logits: list[tuple[tuple[int, int], Tensor]] = []
        states: list[tuple[tuple[int, int], Tensor | None, Tensor | None]] = []
        scored: list[tuple[tuple[int, int], Tensor]] = []
        rows = 0
        for pieces, width in split(items, self.decode_width, self.prefill_chunk_size):
            batch = build(pieces, width, self.arena, self.rope_lengths)
            rows += len(batch.ids)
            with self._final_states(items):
                out = self._run(batch, drafts)
            at, used = 0, 0
            for piece in pieces:
                key = (piece.index, piece.offset)
                wanted = max(0, min(piece.count, piece.offset + piece.count - len(piece.item.ids) + piece.item.wants))
                if wanted and out is not None:
                    logits.append((key, out[used : used + wanted]))
                    used += wanted
                states.append((key, *self._take(at, piece.count)))
                if piece.item.scored and self._final is not None:  # only rows of prompts, and those are one piece
                    scored.append((key, self._final[at + piece.item.scored.start : at + piece.item.scored.stop]))
                at += piece.count
        logits.sort(key=lambda item: item[0])
        states.sort(key=lambda item: item[0])
        scored.sort(key=lambda item: item[0])
        parts = [part for _, part in logits]
        return ForwardOutput(
            logits=None if not parts else parts[0] if len(parts) == 1 else torch.cat(parts),
            hidden=torch.cat([h for _, h, _ in states if h is not None]) if self._tap_hidden else None,
            aux=torch.cat([a for _, _, a in states if a is not None]) if self._aux_layers else None,
            rows=rows,
            scored=torch.cat([h for _, h in scored]) if scored else None,
        )

    def _take(self, at: int, count: int) -> tuple[Tensor | None, Tensor | None]:
        hidden = None if self._final is None or not self._tap_hidden else self._final[at : at + count]
        if not self._aux_layers:
            return hidden, None
        return hidden, torch.stack([self.flat.tapped[k][at : at + count] for k in self._aux_layers], dim=1)

    def _run(self, batch: FlatBatch, drafts: DeviceDrafts | None) -> Tensor | None:
        """Run one flat batch; return logits [R, V], or None where no row wanted any."""
        rows = batch.logits_rows
        wanted = len(rows)
        if wanted and self.decode_width is not None and self.flat.keeps_rows:
            # In a forward of fixed width the head sees a fixed number of rows as well.
            rows = self._padded(rows, len(batch.ids), batch)
        ids, positions, head_rows = inputs(batch, rows, drafts, self.device)
        lengths = batch.lengths
        if lengths is None and self.flat.row_tables is not None:
            lengths = batch.positions + 1
        logits = self.flat.run(
            ids,
            positions,
            batch.step,
            self.arena,
            head_rows if wanted else None,
            None if lengths is None else torch.from_numpy(lengths),
        )
        if self.flat.final is not None:
            self._final = self.flat.final
        return logits if logits is None or len(logits) == wanted else logits[:wanted]

    def _padded(self, rows: Indices, size: int, batch: FlatBatch) -> Indices:
        """Return row indices padded to a number that the kind of forward fixes: decode W, prompt chunk 1."""
        width = 1 if batch.pieces[0].item.prompt else size
        return np.concatenate([rows, np.zeros(width - len(rows), np.int64)]) if len(rows) < width else rows


def inputs(batch: FlatBatch, rows: Indices, drafts: DeviceDrafts | None, device: torch.device) -> list[Tensor]:
    """Return ids and positions [N] of a batch, and the rows [R] that the head runs on, on the device: one copy to it.

    Ids of drafts that are there already are put in their places, and the form of their trees into the batch's tables.
    """
    if drafts is None:
        return all_to_device((batch.ids, batch.positions, rows), device)
    places = [*places_of_drafts(batch.pieces), *places_of_trees(batch.pieces)]
    ids, positions, rows_there, at, which, *trees = all_to_device((batch.ids, batch.positions, rows, *places), device)
    if drafts.bits is not None and drafts.depths is not None and batch.step.ancestors is not None:
        of_trees, nodes, deepest = trees
        positions = positions.index_add(0, of_trees, torch.minimum(drafts.depths[nodes], deepest))
        shape = batch.step.ancestors.shape
        bits = drafts.bits[nodes, : shape[1]]
        batch.step.grown = bits.new_zeros(shape).index_copy(0, of_trees, bits)
    return [ids.index_copy(0, at, drafts.ids.long()[which]), positions, rows_there]
