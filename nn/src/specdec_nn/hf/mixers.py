"""Mixers that keep a state (linear attention, state spaces, short convolutions) in a flat ragged batch.

A mixer's own forward runs once over all rows, as transformers has it without a cache. What makes its rows see each
other are a few functions of its module file. Its forward gets the project's ops in their place, which know whose row is
whose and keep the states. So projections, gates and norms stay the family's own, and a family is known by these
functions alone. Nothing of transformers is changed: a mixer gets a copy of its forward that finds other functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_core.errors import TargetError
from specdec_nn.cache.states import LayerState, Shape, StatePool, StateStep


class Bound(Protocol):
    """What a mixer asks of the binding that it belongs to."""

    @property
    def states(self) -> tuple[StatePool, StateStep] | None:
        """The states of the forward that runs, None outside of one."""


class Mixer:
    """One module that keeps a state, with the ops in place of its functions.

    calls  how many times its forward has run since it was set to 0
    """

    def __init__(self, module: nn.Module, index: int, ops: Mapping[str, Callable[..., Tensor]], owner: Bound) -> None:
        """Make the forward; `module` is one of which `functions_of` names some."""
        self.index, self.calls = index, 0
        self._owner, self._ops, self._name = owner, ops, type(module).__name__
        self._count = 0  # states used in this forward
        own = inspect.unwrap(type(module).forward)
        replaced = {name: functools.partial(make, self) for name, make in FUNCTIONS.items() if name in own.__globals__}
        copy = FunctionType(
            own.__code__, {**own.__globals__, **replaced}, own.__name__, own.__defaults__, own.__closure__
        )
        copy.__kwdefaults__ = own.__kwdefaults__

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self._count = 0
            return copy(module, *args, **kwargs)

        self.forward: Callable[..., Any] = forward

    def _state(self, snapshot: Shape, logs: tuple[Shape, ...], device: torch.device) -> LayerState:
        """Return the next state of this forward."""
        states = self._owner.states
        if states is None:
            message = f"layer {self.index} ({self._name}) ran outside of a flat batch, so it has no states"
            raise TargetError(message)
        key, self._count = (self.index, self._count), self._count + 1
        return states[0].layer(key, snapshot, logs, device)

    def _step(self) -> StateStep:
        states = self._owner.states
        assert states is not None  # `_state` has raised
        return states[1]

    def _check(self, batch: Tensor, asked: Mapping[str, Any]) -> None:
        """Raise TargetError for what a flat batch cannot honour."""
        strange = sorted(name for name, value in asked.items() if value is not None and name not in _HARMLESS)
        if strange or batch.shape[0] != 1:
            what = ", ".join(strange) or "a batch"
            message = f"layer {self.index} ({self._name}) asks for {what}, which a flat ragged batch cannot honour"
            raise TargetError(message)

    def convolve(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Run `causal_conv1d_fn`: [1, C, N] and weight [C, K] -> [1, C, N]."""
        self._check(hidden_states, kwargs)
        x = hidden_states[0].t().float()
        channels, taps = weight.shape
        state = self._state((taps - 1, channels), ((channels,),), x.device)
        own_bias = None if bias is None else bias.detach().float()
        out = self._ops["short_conv"](x, weight.detach().t().float(), own_bias, state, self._step())
        out = out.to(weight.dtype)
        if activation is not None:
            out = _activation(activation)(out)
        return out.to(hidden_states.dtype).t().unsqueeze(0)

    def delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        chunk_size: int = 0,
        initial_state: None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Run `torch_chunk_gated_delta_rule`: query, key [1, N, G, Dk], value [1, N, H, Dv] -> [1, N, H, Dv]."""
        self._check(query, kwargs | {"initial_state": initial_state, "output_final_state": output_final_state or None})
        q, k, v, decay, strength = (part[0].float() for part in (query, key, value, g, beta))
        if use_qk_l2norm_in_kernel:
            q, k = (x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6) for x in (q, k))
        q = q / (q.shape[-1] ** 0.5)
        return self._scan(q, k, v, decay, strength).to(query.dtype).unsqueeze(0), None

    def chunk_scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # the family's names
        B: Tensor,
        C: Tensor,
        chunk_size: int = 0,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Run `mamba2_chunk_scan`: x [1, N, H, P], dt [1, N, H], A [H], B, C [1, N, G, S] -> [1, N, H, P]."""
        self._check(hidden_states, kwargs | {"initial_states": initial_states, "states": return_final_states or None})
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        dt = torch.clamp(F.softplus(dt) if dt_softplus else dt, min=dt_limit[0], max=dt_limit[1])[0].float()
        x = hidden_states[0].float()
        out = self._scan(C[0].float(), B[0].float(), x * dt[:, :, None], A.float() * dt, None)
        if D is not None:
            out = out + D[..., None] * x
        return out.unsqueeze(0)

    def _scan(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None) -> Tensor:
        heads, width = v.shape[1:]
        logs = (tuple(k.shape[1:]), (heads, width), (heads,), (heads,))
        state = self._state((heads, k.shape[2], width), logs, v.device)
        return self._ops["gated_scan"](q, k, v, decay, beta, state, self._step())

    def selective_scan(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        use_mambapy: bool = False,
        use_associative_scan: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Run `mamba_selective_scan`: hidden_states, dt [1, D, N], A [D, S], B, C [1, S, N] -> [1, D, N]."""
        self._check(hidden_states, kwargs | {"states": return_last_state or None})
        if delta_bias is not None:
            dt = dt + delta_bias.to(dt.dtype)[..., None]
        dt = F.softplus(dt) if delta_softplus else dt
        x, steps, b, c = (part[0].t().float() for part in (hidden_states, dt, B, C))
        state = self._state(tuple(A.shape), ((A.shape[0],), (A.shape[0],), (A.shape[1],)), x.device)
        scanned = self._ops["selective_scan"](x, steps, b, c, A.detach().float(), state, self._step())
        out = scanned.t().unsqueeze(0).to(hidden_states.dtype)
        if D is not None:
            out = out + hidden_states * D[None, :, None]
        return out if z is None else out * F.silu(z)


# What makes rows see each other, by the names that transformers' module files have for it.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": Mixer.convolve,
    "torch_chunk_gated_delta_rule": Mixer.delta_rule,
    "mamba2_chunk_scan": Mixer.chunk_scan,
    "mamba_selective_scan": Mixer.selective_scan,
}
OPS = ("short_conv", "gated_scan", "selective_scan")
# Keywords that change nothing in a flat batch without a cache.
_HARMLESS = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits"}
)


def is_mixer(module: nn.Module) -> bool:
    """Return whether a module's forward calls functions that keep states, by names known here."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    if not isinstance(code, CodeType) or "forward" in module.__dict__:
        return False
    return any(name in FUNCTIONS and name in forward.__globals__ for name in code.co_names)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    function: Callable[[Tensor], Tensor] = ACT2FN[name]
    return function
