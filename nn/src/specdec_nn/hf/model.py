"""A transformers causal language model over flat ragged batches; it knows rows and tables, not requests.

Hosts run their target by it, and methods whose drafter is a language model of its own run that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_core.registry.kernels import Kernels
from specdec_nn.cache.arena import Capture, KVArena
from specdec_nn.cache.states import StatePool
from specdec_nn.graphs import Replayed
from specdec_nn.hf.binding import Binding
from specdec_nn.hf.mixers import OPS
from specdec_nn.hf.row_tables import RowTables
from specdec_nn.ops.attention.reference import AttentionStep


class LayersInOnePass(Protocol):
    """All layers of a decoder in one call, as `specdec_nn.fused` has them."""

    def serves(self, rows: int) -> bool:
        """Return whether a call of so many rows runs here."""

    def run(
        self, ids: Tensor, positions: Tensor, step: AttentionStep, arena: KVArena, taps: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run rows ids [N] at positions [N]; return final states [N, H] and the inputs [N, H] of the layers `taps`."""


class _DecoderAnswer:
    """What a decoder returns to the head above it: the final states, and None for all else that a family may read."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden.unsqueeze(0)

    def keys(self) -> tuple[str, ...]:
        """Return the names of what is there, for heads that pass everything on by name."""
        return ("last_hidden_state",)

    def __getitem__(self, index: Any) -> Any:
        return getattr(self, index) if isinstance(index, str) else (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class FlatModel:
    """Forwards of N flat rows of any number of requests, whose keys and values are in an arena."""

    def __init__(self, model: nn.Module, num_layers: int, vocab_size: int, kernels: Kernels) -> None:
        """Bind a loaded model in evaluation mode, with its number of decoder layers and of embedding rows.

        On a CPU its linear layers run on packed weights. See `specdec_nn.hf.probe.probe` for whether it can run here.
        """
        self.model = model.eval()
        self.device = next(model.parameters()).device  # of the model's inputs; finding it is not free, once a forward
        self.num_layers = num_layers
        self.vocab_size = vocab_size
        self.backends = {op: kernels.backend(op, self.device) for op in ("linear", "attention")}
        linear = kernels.get("linear", self.device) if self.device.type == "cpu" else None
        ops = {op: kernels.get(op, self.device) for op in OPS}
        self.binding = Binding(model, kernels.get("attention", self.device), linear, ops)
        # Bytes of a request's recurrent states, and of each row that may be taken back; set by the trial.
        self.state_bytes = self.state_row_bytes = 0
        self._compact: Callable[..., None] = kernels.get("compact", self.device)
        self.decoder: nn.Module = model.get_decoder()  # type: ignore[operator] # what the head's code calls
        self.row_tables = RowTables.of(model)
        self.fused: LayersInOnePass | None = None  # set by `specdec_nn.fused.trial.fuse`
        self.unfused: str | None = "the fused pass was not asked for"  # why `fused` is None
        self.capture: Capture | None = None  # how forwards of drafters are captured, `graphs` those of the model
        self.graphs: Replayed | None = None  # both are set by who wants them
        self.final: Tensor | None = None  # final states [N, H] of the last forward, if that was one of those
        self.taps: tuple[int, ...] = ()  # the layers at which `tap` keeps the residual stream
        self._tapped_modules: list[nn.Module] = []
        self.tapped: dict[int, Tensor] = {}
        # Whether the head can run on the rows asked for alone.
        self.keeps_rows = "logits_to_keep" in inspect.signature(type(model).forward).parameters

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's hidden states."""
        return next(p for p in self.model.parameters() if p.is_floating_point()).dtype

    @property
    def embedding_weight(self) -> Tensor:
        """Rows of the input embedding [V, H], without the factor that some families put on them."""
        weight: Tensor = self.model.get_input_embeddings().weight  # type: ignore[operator] # torch knows no type
        return weight.detach()

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input embeddings [n, H] of ids [n]."""
        with torch.inference_mode():
            embeddings: Tensor = self.model.get_input_embeddings()(ids)  # type: ignore[operator] # torch knows no type
        return embeddings

    @property
    def keeps_states(self) -> bool:
        """Whether some layers keep recurrent or convolution states, so that rows are chains and prefixes not shared."""
        return bool(self.binding.mixers)

    def new_arena(self, num_tokens: int, num_requests: int = 1) -> KVArena:
        """Return an empty KV arena for that many tokens, on the model's device.

        If the model keeps states, it has room for those of `num_requests` requests at first, and gets more when asked.
        """
        states = StatePool(num_requests) if self.keeps_states else None
        return KVArena(num_tokens, self.device, compact=self._compact, states=states)

    def new_rows(self, num_tokens: int) -> KVArena:
        """Return an empty KV arena without states, for a drafter that has layers of its own."""
        arena = KVArena(num_tokens, self.device, compact=self._compact)
        arena.capture = self.capture
        return arena

    def run(
        self,
        ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        arena: KVArena,
        rows: Tensor | None,
        lengths: Tensor | None = None,
    ) -> Tensor | None:
        """Run rows ids [N] int64 at positions [N] int64, and write their keys and values where `step` specifies.

        Returns logits [R, V] of the rows [R] int64 in the model's dtype; None where `rows` is None: then no head runs.
        `lengths` [N] int64 are those of the texts that rows are turned for, where `row_tables` is there to read them.
        The residual stream at the layers that `tap` named is in `tapped` afterwards.
        """
        self.final = None
        if self.graphs is not None and rows is not None and self.row_tables is None:
            logits = self._replayed(ids, positions, step, arena, rows)
            if logits is not None:
                return logits
        return self._forward(ids, positions, step, arena, rows, lengths)

    def _replayed(
        self, ids: Tensor, positions: Tensor, step: AttentionStep, arena: KVArena, rows: Tensor
    ) -> Tensor | None:
        """Return logits [R, V] of a forward that was captured as a graph; None where it cannot be."""
        assert self.graphs is not None
        given = [part.to(self.device) for part in (ids, positions, rows)]
        outputs = self.graphs.run(step, arena, given)
        if outputs is None:
            return None
        logits, final, *taps = outputs
        self.final = final[: len(ids)]
        self.tapped = {k: state[: len(ids)] for k, state in zip(self.taps, taps, strict=True)}
        return logits[: len(rows)]

    def work(self, step: AttentionStep, arena: KVArena, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return logits, final states and taps, [N, ..] each, of ids, positions and rows [N]: work for `graphs`."""
        ids, positions, rows = given
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            kept.append(output[0][0] if isinstance(output, tuple) else output.last_hidden_state[0])

        hook = self.decoder.register_forward_hook(keep)
        try:
            logits = self._forward(ids, positions, step, arena, rows, None)
        finally:
            hook.remove()
        assert logits is not None
        return logits, kept[-1], *(self.tapped[k] for k in self.taps)

    def _forward(
        self,
        ids: Tensor,
        positions: Tensor,
        step: AttentionStep,
        arena: KVArena,
        rows: Tensor | None,
        lengths: Tensor | None,
    ) -> Tensor | None:
        """Run rows through the modules, or through the layers in one pass where these serve."""
        inputs: dict[str, Any] = {
            "input_ids": ids.to(self.device).unsqueeze(0),
            "position_ids": positions.to(self.device).unsqueeze(0),
            "use_cache": False,
        }
        fused = self.fused if self.fused is not None and self.fused.serves(len(ids)) else None
        turned = nullcontext() if self.row_tables is None else self.row_tables.rows(positions, lengths)
        with torch.inference_mode(), turned:
            if fused is not None:

                def forward(*args: Any, **kwargs: Any) -> _DecoderAnswer:
                    final, self.tapped = fused.run(ids, positions, step, arena, self.taps)
                    return _DecoderAnswer(final)

                with self.binding.head(), self._decoder_that(forward):
                    return self._call(inputs, rows)
            with self.binding, self._hooked():
                self.binding.step, self.binding.arena = step, arena
                try:
                    return self._call(inputs, rows)
                finally:
                    self.binding.step = self.binding.arena = None

    def _call(self, inputs: dict[str, Any], rows: Tensor | None) -> Tensor | None:
        """Run the decoder, and the head on the rows asked for."""
        if rows is None:
            self.decoder(**inputs)
            return None
        rows = rows.to(self.device)
        if self.keeps_rows:
            logits: Tensor = self.model(**inputs, logits_to_keep=rows).logits[0]
            return logits
        all_logits: Tensor = self.model(**inputs).logits[0]
        return all_logits[rows]

    @contextmanager
    def _decoder_that(self, forward: Callable[..., Any]) -> Iterator[None]:
        """Have the decoder answer by a function."""
        kept = self.decoder.__dict__.get("forward")
        self.decoder.__dict__["forward"] = forward
        try:
            yield
        finally:
            del self.decoder.__dict__["forward"]
            if kept is not None:
                self.decoder.__dict__["forward"] = kept

    def tap(self, layers: Sequence[int]) -> None:
        """Keep, in every later forward, the residual stream [N, H] at the input of each of these layers in `tapped`.

        The number of layers stands for what comes out of the last one. Raises TargetError for a number outside.
        """
        modules = self.decoder_layers() if layers else []
        for k in layers:
            if not 0 <= k <= len(modules):
                message = f"aux layer {k} is outside 0..{len(modules)}, the layers of {type(self.model).__name__}"
                raise TargetError(message)
        self.taps, self._tapped_modules, self.tapped = tuple(layers), modules, {}
        if self.graphs is not None:
            self.graphs.clear()

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Fill `tapped` from the modules of the layers."""
        layers = self._tapped_modules
        hooks = []
        for k in self.taps:
            if k == len(layers):
                hooks.append(layers[-1].register_forward_hook(functools.partial(self._keep_output, k)))
            else:
                keep = functools.partial(self._keep_input, k)
                hooks.append(layers[k].register_forward_pre_hook(keep, with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keep_output(self, k: int, module: nn.Module, args: Any, output: Any) -> None:
        state: Tensor = output[0] if isinstance(output, tuple) else output
        self.tapped[k] = state.reshape(-1, state.shape[-1])

    def _keep_input(self, k: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        state: Tensor = args[0] if args else kwargs["hidden_states"]
        self.tapped[k] = state.reshape(-1, state.shape[-1])

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of final hidden states [n, H], through the model's own head code.

        The head of a family (softcap, logit scale, ...) lives in the model's `forward`, so that is run with a decoder
        that answers with the given states.
        """
        answer = _DecoderAnswer(hidden)
        ids = torch.zeros((1, hidden.shape[0]), dtype=torch.long, device=self.device)
        with torch.inference_mode(), self._decoder_that(lambda *args, **kwargs: answer):
            logits: Tensor = self.model(input_ids=ids).logits[0]
        return logits

    def decoder_layers(self) -> list[nn.Module]:
        """Return the decoder layers in order: the module list whose items hold the attention or mixers that ran.

        Raises TargetError for a model that keeps them elsewhere.
        """
        attention = {id(module) for module in self.binding.called()}
        for module in self.model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.num_layers:
                if all(any(id(part) in attention for part in layer.modules()) for layer in module):
                    return list(module)
        message = f"{type(self.model).__name__} does not keep its decoder layers in one list, so none can be tapped"
        raise TargetError(message)
