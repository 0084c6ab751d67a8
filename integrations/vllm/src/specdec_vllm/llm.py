"""vLLM's offline class with a speculative configuration of ours, and the way that takes into vLLM; imports vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import vllm
from vllm.plugins import load_general_plugins

from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.errors import ConfigError
from specdec_vllm import plugin
from specdec_vllm.routing import CUSTOM, PROPOSER
from specdec_vllm.settings import KEY, K


class LLM(vllm.LLM):  # type: ignore[misc]  # vLLM need not be there for type checks
    """`vllm.LLM` with `speculative_config` read as `specdec_engine.LLM` reads it; everything else is vLLM's."""

    def __init__(self, model: str, *, speculative_config: Any = None, **kwargs: Any) -> None:
        """Start the engine; raises ConfigError for a configuration that cannot be passed on.

        `speculative_config` is what `specdec_core.config.speculative.SpeculativeConfig.parse` reads: a mapping, JSON,
        `@file`, or an instance. With our plugin in vLLM it becomes the method `specdec`; with `SPECDEC_VLLM=0`,
        `custom_class`.
        """
        if speculative_config is not None:
            kwargs = {**kwargs, **engine_arguments(speculative_config, kwargs.get("additional_config"))}
        super().__init__(model, **kwargs)


def engine_arguments(speculative_config: Any, additional_config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that stand for a speculative configuration of ours."""
    given = SpeculativeConfig.parse(speculative_config).as_json()
    k = given.pop(K, None)
    load_general_plugins()
    counted = {} if k is None else {K: k}
    if not plugin.is_off() and plugin.takes_the_method():
        return {"speculative_config": {"method": KEY, **counted, KEY: given}}
    if k is None:
        message = f"{K} is required: vLLM, unchanged, does not take it from the method"
        raise ConfigError(message)
    additional = dict(additional_config or {})
    if KEY in additional:
        message = f"additional_config has {KEY!r} already, and speculative_config is put there; give one of them"
        raise ConfigError(message)
    return {
        "speculative_config": {"method": CUSTOM, "model": PROPOSER, **counted},
        "additional_config": {**additional, KEY: given},
    }
