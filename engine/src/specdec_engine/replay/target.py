"""The target of a replay: sizes that traces tell, and no model; refuses methods that would need one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, MakeStageError, TargetError
from specdec_core.sources import TargetInfo
from specdec_engine.traces import Trace

LEARNS: Final = (
    "learns from the {wanted} likeliest ids at verified rows, and the traces have {there}; record them with "
    "`specdec generate --record FILE --record-top {wanted}`"
)
BEYOND: Final = 1024  # positions behind the longest trace: drafts end with the answer, not with the context


def describe(traces: Sequence[Trace]) -> TargetInfo:
    """Return the target as far as the traces tell: its vocabulary, and a context that ends none of them.

    Width and layers are 1. Raises TargetError for traces of models with different vocabularies.
    """
    sizes = {trace.vocab_size for trace in traces if trace.vocab_size is not None}
    if len(sizes) > 1:
        message = f"the traces are of models with different vocabularies, of {sorted(sizes)} ids; replay each by itself"
        raise TargetError(message)
    longest = max(len(trace.prompt_token_ids) + (trace.max_tokens or len(trace.token_ids)) for trace in traces)
    largest = max(
        max(*trace.prompt_token_ids, *trace.token_ids, *(id_ for place in trace.top for id_, _ in place))
        for trace in traces
    )
    return TargetInfo(
        model=next((trace.model for trace in traces if trace.model), None),
        hf_config={},
        vocab_size=max(largest + 1, *sizes) if sizes else largest + 1,
        hidden_size=1,
        num_layers=1,
        max_model_len=longest + BEYOND,
    )


def refuse(resolved: ResolvedConfig, label: str, top_n: int) -> None:
    """Raise ConfigError if the method, or a part of it, needs more of a target than what the traces have.

    That is the ids that it emitted, and the `top_n` likeliest ones in the place of each.
    """
    needs = [f"method {method!r} {need}" for method, need in _needs(resolved, top_n)]
    if resolved.controller is not None:
        needs.append(f"controller {resolved.controller!r} goes by the time of forwards")
    if needs:
        message = (
            f"--methods, {label!r} cannot be replayed: {'; '.join(needs)}. Measure with `specdec bench MODEL`, or "
            "replay methods that look ids up"
        )
        raise ConfigError(message)


def _needs(resolved: ResolvedConfig, top_n: int) -> Iterator[tuple[str, str]]:
    if resolved.parts:
        for part in resolved.parts:
            yield from _needs(part, top_n)
        return
    traits = resolved.traits
    if traits.rows != "none" or traits.hidden or traits.aux_layers:
        yield resolved.method, "reads the target's hidden states"
    elif traits.verified_top_k > top_n:
        yield resolved.method, LEARNS.format(wanted=traits.verified_top_k, there=top_n or "none")
    elif traits.first_layers:
        yield resolved.method, "runs the target's first layers"
    elif traits.target_keys:
        yield resolved.method, "attends to the target's keys and values"
    elif traits.weights != "none":
        yield resolved.method, "has weights that are loaded for a target"


class TraceTarget:
    """A `specdec_core.sources.TargetHandle` without a model: what needs one raises ConfigError."""

    def __init__(self, info: TargetInfo) -> None:
        """Take what the traces tell."""
        self.info = info
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.tokenizer: Any | None = None
        self.max_num_seqs = 1
        self.kv_cache_tokens = info.max_model_len

    @property
    def embedding_weight(self) -> Tensor:
        """Raise ConfigError."""
        self._refuse("embedding")

    def embed(self, ids: Tensor) -> Tensor:
        """Raise ConfigError."""
        self._refuse("embedding")

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Raise ConfigError."""
        self._refuse("output head")

    def new_arena(self, num_tokens: int) -> Any:
        """Raise ConfigError."""
        self._refuse("KV arena")

    def _refuse(self, what: str) -> NoReturn:
        message = f"the method asks for the target's {what}, and a replay has no target"
        raise ConfigError(message)


def cannot_make(label: str, error: MakeStageError) -> ConfigError:
    """Return the error for a method that could not be built without a model."""
    return ConfigError(f"--methods, {label!r} cannot be replayed: {error}")
