"""How a transformers model is made to run a flat ragged batch, and how it is given back as it was.

While a `Binding` is entered, the model's attention calls `_attention` here, which finds its layer through the
attention module (`module._specdec`), since some families swallow keywords; its mixers keep the states of each request
(`specdec_nn.hf.mixers`); and its linear layers run on packed weights. On leaving, every module and configuration is as
before, so a model that the caller owns stays usable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_nn.cache.arena import KVArena
from specdec_nn.cache.states import StatePool, StateStep
from specdec_nn.hf.mixers import Mixer, is_mixer
from specdec_nn.ops.attention.reference import AttentionStep
from specdec_nn.ops.linear.reference import PackedLinear

ATTENTION_NAME = "specdec"
# Bindings hold the packed weights; the last one to go takes them along, whether its model lives on or not.
_PACKED: WeakKeyDictionary[nn.Module, tuple[tuple[int, int], ReferenceType[PackedLinear]]] = WeakKeyDictionary()
# Keywords of attention calls that change nothing for a causal flat batch without dropout.
_HARMLESS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "output_hidden_states", "cache_position"}
    | {"cache", "past_key_values", "return_dict", "logits_to_keep", "position_embeddings", "output_router_logits"}
)


class LayerCall:
    """One attention module: its place among the layers, and what its last call passed."""

    __slots__ = ("calls", "index", "owner", "scaling", "sinks", "softcap", "window")

    def __init__(self, index: int, owner: Binding) -> None:
        """Remember the place; nothing was called yet."""
        self.index = index
        self.owner = owner
        self.calls = 0
        self.window: int | None = None
        self.scaling = 0.0
        self.softcap: float | None = None
        self.sinks: Tensor | None = None


class Binding:
    """A context manager around forwards of one model; not reentrant."""

    def __init__(
        self,
        model: nn.Module,
        attention: Callable[..., Tensor],
        linear: Callable[..., Tensor] | None,
        ops: Mapping[str, Callable[..., Tensor]] | None = None,
    ) -> None:
        """Find the modules; `linear` None leaves linear layers alone, `ops` None leaves mixers alone.

        `ops` are the kernels of `specdec_nn.hf.mixers.OPS`.
        """
        self.attention = attention
        self.step: AttentionStep | None = None
        self.arena: KVArena | None = None
        modules = [m for m in model.modules() if isinstance(getattr(m, "layer_idx", None), int)]
        self._layers = [(module, LayerCall(i, self)) for i, module in enumerate(modules)]
        self.mixers = {} if ops is None else {m: Mixer(m, i, ops, self) for i, m in enumerate(modules) if is_mixer(m)}
        self._linears = [] if linear is None else _packed_forwards(model, linear)
        decoder = getattr(model, "get_decoder", None)  # a list of layers by themselves has none
        inside = {id(module) for module in (model if decoder is None else decoder()).modules()}
        self._head = [(module, forward) for module, forward in self._linears if id(module) not in inside]
        self._configs = _unique_configs(model)
        self._saved: list[tuple[Any, str, Any]] = []
        self.batched_experts = False

    @property
    def states(self) -> tuple[StatePool, StateStep] | None:
        """The states of the forward that runs, None outside of one."""
        if self.arena is None or self.step is None or self.arena.states is None or self.step.states is None:
            return None
        return self.arena.states, self.step.states

    @property
    def modules(self) -> list[nn.Module]:
        """Every module that may turn out to be an attention layer, in the order of `LayerCall.index`."""
        return [module for module, _ in self._layers]

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run the model outside of flat batches with the attention that its own code spells out."""
        for config in self._configs:
            self._set(config, "_attn_implementation_internal", "eager")
        try:
            yield
        finally:
            self._restore()

    @contextmanager
    def head(self) -> Iterator[None]:
        """Run what is above the decoder on packed weights, and leave the decoder alone."""
        for module, forward in self._head:
            module.__dict__["forward"] = forward
        try:
            yield
        finally:
            for module, _ in self._head:
                module.__dict__.pop("forward", None)

    def calls(self) -> list[LayerCall]:
        """Return the modules that called the attention function since the last `reset_calls`."""
        return [call for _, call in self._layers if call.calls]

    def called(self) -> dict[nn.Module, int]:
        """Return each attention module and mixer that ran since the last `reset_calls`, in order, with its calls."""
        found = {
            module: self.mixers[module].calls if module in self.mixers else call.calls for module, call in self._layers
        }
        return {module: calls for module, calls in found.items() if calls}

    def module_of(self, call: LayerCall) -> nn.Module:
        """Return the attention module of a layer."""
        return self._layers[call.index][0]

    def reset_calls(self) -> None:
        """Forget all calls."""
        for _, call in self._layers:
            call.calls, call.window = 0, None
        for mixer in self.mixers.values():
            mixer.calls = 0

    def __enter__(self) -> None:
        """Hand the model over to the flat batch."""
        _REGISTRATION.take()
        for config in self._configs:
            self._set(config, "_attn_implementation_internal", ATTENTION_NAME)
            if self.batched_experts and getattr(config, "_experts_implementation_internal", None) is not None:
                # One product per (row, expert): a row does not feel which other rows chose its expert.
                self._set(config, "_experts_implementation_internal", "batched_mm")
        for module, call in self._layers:
            module.__dict__["_specdec"] = call
        for module, forward in self._linears:
            module.__dict__["forward"] = forward
        for module, mixer in self.mixers.items():
            module.__dict__["forward"] = mixer.forward

    def _set(self, config: Any, name: str, value: str) -> None:
        self._saved.append((config, name, getattr(config, name)))
        setattr(config, name, value)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the model back."""
        _REGISTRATION.give_back()
        for module in (*(module for module, _ in self._linears), *self.mixers):
            module.__dict__.pop("forward", None)
        for module, _ in self._layers:
            module.__dict__.pop("_specdec", None)
        self._restore()

    def _restore(self) -> None:
        while self._saved:
            config, name, value = self._saved.pop()
            setattr(config, name, value)


def _unique_configs(model: nn.Module) -> list[Any]:
    """Return every configuration that some module of the model reads its attention setting from."""
    found = {id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "to_dict")}
    return list(found.values())


def _packed_forwards(model: nn.Module, linear: Callable[..., Tensor]) -> list[tuple[nn.Module, Callable[..., Tensor]]]:
    """Return a packed forward for each plain linear layer; subclasses (quantised layers, adapters) are left alone."""
    from transformers.pytorch_utils import Conv1D

    forwards: list[tuple[nn.Module, Callable[..., Tensor]]] = []
    for module in model.modules():
        if "forward" in module.__dict__:
            continue
        if type(module) in (nn.Linear, Conv1D):
            forwards.append((module, _forward(packed_linear(module, transposed=type(module) is Conv1D), linear)))
    return forwards


def packed_linear(module: nn.Module, *, transposed: bool = False) -> PackedLinear:
    """Return the module's packed weight; engines over one model share it as long as the weight is not written to."""
    weight: Tensor = module.weight  # type: ignore[assignment] # attributes of a module are untyped
    bias: Tensor | None = module.bias  # type: ignore[assignment] # attributes of a module are untyped
    mark = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    known = _PACKED.get(module)
    packed = known[1]() if known is not None and known[0] == mark else None
    if packed is None:
        detached = weight.detach().t() if transposed else weight.detach()
        packed = PackedLinear(weight=detached, bias=None if bias is None else bias.detach())
        _PACKED[module] = (mark, ref(packed))
    return packed


def _forward(packed: PackedLinear, linear: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    out_features = packed.weight.shape[0]

    def forward(x: Tensor) -> Tensor:
        return linear(x.reshape(-1, x.shape[-1]), packed).view(*x.shape[:-1], out_features)

    return forward


class _Registration:
    """The attention function's place in transformers' table, taken only while some model is bound.

    A name without a mask function gets no mask built.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bound = 0

    def take(self) -> None:
        """Count a bound model; the first one has the name registered."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        with self._lock:
            self._bound += 1
            if self._bound == 1:
                ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME] = _attention

    def give_back(self) -> None:
        """Count a model that is bound no more; the last one takes the name out."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        with self._lock:
            self._bound -= 1
            if not self._bound:
                del ALL_ATTENTION_FUNCTIONS[ATTENTION_NAME]


_REGISTRATION = _Registration()


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within a flat batch: query [1, H, N, Dk], key [1, Hkv, N, Dk], value [1, Hkv, N, Dv] -> [1, N, H, Dv]."""
    call: LayerCall | None = module.__dict__.get("_specdec")
    name = type(module).__name__
    if call is None or call.owner.step is None or call.owner.arena is None:
        message = f"{name} called the attention function of specdec outside of a flat batch, or has no layer index"
        raise TargetError(message)
    strange = sorted(k for k, v in kwargs.items() if v is not None and k not in _HARMLESS)
    if strange or attention_mask is not None or is_causal is False or query.shape[0] != 1:
        what = strange or ["attention_mask" if attention_mask is not None else "non-causal attention or a batch"]
        message = f"layer {call.index} ({name}) asks for {', '.join(what)}, which a flat ragged batch cannot honour"
        raise TargetError(message)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    call.calls += 1
    call.window, call.scaling, call.softcap, call.sinks = sliding_window, scaling, softcap, s_aux
    k, v = key[0].transpose(0, 1), value[0].transpose(0, 1)
    k_pages, v_pages = call.owner.arena.layer(call.index, k, v)
    out = call.owner.attention(
        query[0].transpose(0, 1),
        k,
        v,
        k_pages,
        v_pages,
        call.owner.step,
        scaling=scaling,
        softcap=softcap,
        sinks=s_aux,
        window=sliding_window,
    )
    return out.unsqueeze(0), None
