"""One engine per transformers model, kept between calls as long as model and settings stay the same.

The engine hangs on the model itself, so that both go together; between calls it holds no KV memory and no hooks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch import nn

from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import RequestError
from specdec_engine.llm import LLM
from specdec_nn.turns import lock_of

ATTRIBUTE: Final = "_specdec_engine"
# Parameters of LLM that make sense for a model that is loaded already.
ENGINE_ARGS: Final = (
    "max_model_len",
    "max_num_seqs",
    "kv_cache_tokens",
    "decode_width",
    "prefill_chunk_size",
    "strict",
    "fused",
    "disable_log_stats",
)


class KeptEngine:
    """An engine with what it was made for; a copy of a model, or a pickle, does not take it along."""

    def __init__(self, made_for: Any = None, llm: LLM | None = None) -> None:
        """Hold nothing, or an engine."""
        self.made_for = made_for
        self.llm = llm
        # What free memory, or the caller, allows; each call takes what it needs of it.
        self.most_kv_tokens = 0 if llm is None else llm.kv_cache_tokens

    def __deepcopy__(self, memo: dict[int, Any]) -> KeptEngine:
        """Return an empty holder."""
        return KeptEngine()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty holder."""
        return KeptEngine, ()


def engine_of(model: nn.Module) -> LLM | None:
    """Return the engine that `generate` has kept for a model: its metrics, its resolved configuration; None if none."""
    kept: KeptEngine | None = vars(model).get(ATTRIBUTE)
    return None if kept is None else kept.llm


@contextmanager
def engine_for(
    model: nn.Module, speculative_config: Any, plugins: Mapping[str, Any] | None, engine_args: Mapping[str, Any] | None
) -> Iterator[KeptEngine]:
    """Lend the model's engine, made anew if the model's weights or a setting changed since the last call.

    The model is in evaluation mode meanwhile, and given back as it was; calls from other threads wait. Raises
    RequestError for unknown engine_args, and what `LLM` raises.
    """
    arguments = dict(engine_args or {})
    unknown = sorted(set(arguments) - set(ENGINE_ARGS))
    if unknown:
        message = f"engine_args has {', '.join(unknown)}; expected {', '.join(ENGINE_ARGS)}"
        raise RequestError(message)
    parsed = None if speculative_config is None else SpeculativeConfig.parse(speculative_config)
    settings = None if parsed is None else json.dumps(parsed.as_json(), sort_keys=True, default=repr)
    made_for = (settings, dict(plugins or {}), arguments, _fingerprint(model))
    with lock_of(model):
        training = [module for module in model.modules() if module.training]
        try:
            yield _kept(model, made_for, parsed, plugins, arguments)
        finally:
            for module in training:
                module.training = True
            llm = engine_of(model)
            if llm is not None:
                llm.pause()


def _kept(
    model: nn.Module, made_for: Any, config: SpeculativeConfig | None, plugins: Any, arguments: Mapping[str, Any]
) -> KeptEngine:
    kept: KeptEngine | None = vars(model).get(ATTRIBUTE)
    if kept is None or kept.llm is None or kept.llm.closed or kept.made_for != made_for:
        if kept is not None and kept.llm is not None:
            del model.__dict__[ATTRIBUTE]
            kept.llm.close()
        llm = LLM(hf_model=model, speculative_config=config, plugins=plugins, **arguments)
        kept = model.__dict__[ATTRIBUTE] = KeptEngine(made_for, llm)
    model.eval()
    return kept


def _fingerprint(model: nn.Module) -> int:
    """Return a number that changes when a weight is written to, moved or exchanged, or the configuration is changed."""
    weights = tuple(
        (p.data_ptr(), 0 if p.is_inference() else p._version, p.dtype, p.device, p.shape) for p in model.parameters()
    )
    config: Any = model.config
    return hash((weights, config.to_json_string(use_diff=False)))
