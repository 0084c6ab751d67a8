"""The target model: forwards over flat ragged batches, hidden-state taps, and what proposers may use of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specdec.errors import TargetError
from specdec.nn.arena import KVArena
from specdec.sources import TargetInfo
from specdec_engine.binding import Binding
from specdec_engine.flat_batch import FlatBatch, build, split
from specdec_engine.request import Work


@dataclass(slots=True)
class ForwardOutput:
    """Results of one step, in the order of the work items.

    logits  [sum of work.wants, V] in the model's dtype, or None where no row wanted any
    hidden  [sum of rows, H] final hidden states, or None if not tapped
    aux     [sum of rows, layers, H] residual-stream states, or None if not tapped
    rows    rows that ran, padding included
    scored  [sum of len(work.scored), H] final hidden states of those rows, or None if there are none
    """

    logits: Tensor | None
    hidden: Tensor | None
    aux: Tensor | None
    rows: int
    scored: Tensor | None = None


class _DecoderAnswer:
    """What a decoder returns to the head above it: the final states, and None for all else that a family may read."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden.unsqueeze(0)

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Target:
    """A transformers causal language model, run by flat batches. It is the `TargetHandle` of proposers."""

    def __init__(
        self,
        model: nn.Module,
        info: TargetInfo,
        *,
        attention: Callable[..., Tensor],
        linear: Callable[..., Tensor] | None,
        ancestor_bits: Callable[..., Tensor],
        compact: Callable[..., None],
        max_num_seqs: int,
        decode_width: int | None,
        prefill_chunk_size: int,
    ) -> None:
        """Bind the model; `linear` None leaves its linear layers as they are. The rest are kernels, by their ops."""
        self.model = model
        self.info = info
        self.max_num_seqs = max_num_seqs
        self.decode_width = decode_width
        self.prefill_chunk_size = prefill_chunk_size
        self.binding = Binding(model, attention, linear)
        self.binding.batched_experts = decode_width is not None
        self.ancestor_bits = ancestor_bits
        self._compact = compact
        self.arena = self.new_arena(0)
        self._base: nn.Module = model.get_decoder()  # type: ignore[operator] # what the head's code calls
        self._keeps = "logits_to_keep" in inspect.signature(type(model).forward).parameters
        self._tapped: dict[int, Tensor] = {}
        self._final: Tensor | None = None
        self._tap_hidden = False
        self._aux_layers: tuple[int, ...] = ()
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def device(self) -> torch.device:
        """Device of the model's inputs."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's hidden states."""
        return next(p for p in self.model.parameters() if p.is_floating_point()).dtype

    @property
    def kv_cache_tokens(self) -> int:
        """Positions that the KV arena holds."""
        return self.arena.num_tokens

    @property
    def embedding_weight(self) -> Tensor:
        """Rows of the input embedding [V, H], without the factor that some families put on them."""
        weight: Tensor = self.model.get_input_embeddings().weight  # type: ignore[operator]
        return weight.detach()

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n]."""
        with torch.inference_mode():
            embeddings: Tensor = self.model.get_input_embeddings()(ids)  # type: ignore[operator]
        return embeddings

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], through the model's own head code.

        The head of a family (softcap, logit scale, ...) lives in the model's `forward`, so that is run with a decoder
        that answers with the given states.
        """
        answer = _DecoderAnswer(hidden)
        ids = torch.zeros((1, hidden.shape[0]), dtype=torch.long, device=self.device)
        kept = self._base.__dict__.get("forward")
        self._base.__dict__["forward"] = lambda *args, **kwargs: answer
        try:
            with torch.inference_mode():
                logits: Tensor = self.model(input_ids=ids).logits[0]
        finally:
            del self._base.__dict__["forward"]
            if kept is not None:
                self._base.__dict__["forward"] = kept
        return logits

    def new_arena(self, num_tokens: int) -> KVArena:
        """Return a KV arena for a drafter, for that many tokens, on the target's device."""
        return KVArena(num_tokens, self.device, compact=self._compact)

    def set_budget(self, num_tokens: int) -> None:
        """Replace the KV arena by an empty one for that many tokens."""
        self.arena = self.new_arena(num_tokens)

    def close(self) -> None:
        """Take the taps off and drop the KV arena."""
        self.tap(hidden=False, aux_layers=())
        self.arena = self.new_arena(0)

    def tap(self, *, hidden: bool, aux_layers: Sequence[int]) -> None:
        """Record final hidden states and the residual stream R_k at the given layers in every later forward.

        Raises TargetError for a k outside 0 .. number of layers.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._tap_hidden, self._aux_layers = hidden, tuple(aux_layers)
        if hidden:
            self._hooks.append(self._base.register_forward_hook(self._keep_final))
        layers = self.decoder_layers() if aux_layers else []
        for k in aux_layers:
            if not 0 <= k <= len(layers):
                message = f"aux layer {k} is outside 0..{len(layers)}, the layers of {type(self.model).__name__}"
                raise TargetError(message)
            self._hooks.append(self._tap_layer(layers, k))

    def _keep_final(self, module: nn.Module, args: Any, output: Any) -> None:
        self._final = output[0][0] if isinstance(output, tuple) else output.last_hidden_state[0]

    @contextmanager
    def _final_states(self, works: Sequence[Work]) -> Iterator[None]:
        """Record final hidden states, tapped or not, in forwards of works whose prompt is scored."""
        hook = None
        if not self._tap_hidden and any(work.scored for work in works):
            hook = self._base.register_forward_hook(self._keep_final)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    def _tap_layer(self, layers: Sequence[nn.Module], k: int) -> torch.utils.hooks.RemovableHandle:
        if k == len(layers):

            def after(module: nn.Module, args: Any, output: Any) -> None:
                self._tapped[k] = (output[0] if isinstance(output, tuple) else output).reshape(
                    -1, self.info.hidden_size
                )

            return layers[-1].register_forward_hook(after)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            state = args[0] if args else kwargs["hidden_states"]
            self._tapped[k] = state.reshape(-1, self.info.hidden_size)

        return layers[k].register_forward_pre_hook(before, with_kwargs=True)

    def decoder_layers(self) -> list[nn.Module]:
        """Return the decoder layers in order: the module list whose items hold the attention modules that ran."""
        attention = {id(self.binding.module_of(call)) for call in self.binding.calls()}
        for module in self.model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.info.num_layers:
                if all(any(id(part) in attention for part in layer.modules()) for layer in module):
                    return list(module)
        message = f"{type(self.model).__name__} does not keep its decoder layers in one list, so none can be tapped"
        raise TargetError(message)

    def forward(self, works: Sequence[Work]) -> ForwardOutput:
        """Run the rows of all work items, whose pages must have been reserved in the arena."""
        # (index of the work item, offset in it) decides the order of results, whatever forward a piece ran in.
        order = {id(work): i for i, work in enumerate(works)}
        logits: list[tuple[tuple[int, int], Tensor]] = []
        states: list[tuple[tuple[int, int], Tensor | None, Tensor | None]] = []
        scored: list[tuple[tuple[int, int], Tensor]] = []
        rows = 0
        for pieces, width in split(works, self.decode_width, self.prefill_chunk_size):
            batch = build(pieces, width, self.arena)
            rows += len(batch.ids)
            with self._final_states(works):
                out = self._run(batch)
            at, used = 0, 0
            for piece in pieces:
                key = (order[id(piece.work)], piece.offset)
                wanted = max(0, min(piece.count, piece.offset + piece.count - len(piece.work.ids) + piece.work.wants))
                if wanted and out is not None:
                    logits.append((key, out[used : used + wanted]))
                    used += wanted
                states.append((key, *self._take(at, piece.count)))
                if piece.work.scored and self._final is not None:  # only rows of prompts, and those are one piece
                    scored.append((key, self._final[at + piece.work.scored.start : at + piece.work.scored.stop]))
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
        return hidden, torch.stack([self._tapped[k][at : at + count] for k in self._aux_layers], dim=1)

    def _run(self, batch: FlatBatch) -> Tensor | None:
        """Run one flat batch; return logits [R, V], or None where no row wanted any."""
        device = self.device
        ids = torch.from_numpy(batch.ids).to(device).unsqueeze(0)
        positions = torch.from_numpy(batch.positions).to(device).unsqueeze(0)
        inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        wanted = len(batch.logits_rows)
        with torch.inference_mode(), self.binding:
            self.binding.step, self.binding.arena = batch.step, self.arena
            try:
                if wanted == 0:
                    self._base(**inputs)
                    return None
                rows = torch.from_numpy(batch.logits_rows).to(device)
                if self._keeps:
                    # In a forward of fixed width the head sees a fixed number of rows as well.
                    keep = rows if self.decode_width is None else self._padded(rows, len(batch.ids), batch)
                    logits: Tensor = self.model(**inputs, logits_to_keep=keep).logits[0]
                    return logits[:wanted]
                all_logits: Tensor = self.model(**inputs).logits[0]
                return all_logits[rows]
            finally:
                self.binding.step = self.binding.arena = None

    def _padded(self, rows: Tensor, size: int, batch: FlatBatch) -> Tensor:
        """Return row indices padded to a number that the kind of forward fixes: decode W, prompt chunk 1."""
        width = 1 if batch.pieces[0].work.prompt else size
        return torch.cat([rows, rows.new_zeros(width - len(rows))]) if len(rows) < width else rows
