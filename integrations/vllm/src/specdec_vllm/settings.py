"""From vLLM's configuration to a configured one of ours: what is asked for, of which target; builds no proposer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig, SpeculativeConfig
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo
from specdec_vllm import hookspecs, verification
from specdec_vllm.version import __version__

KEY: Final = "specdec"
K: Final = "num_speculative_tokens"
ROUTE: Final = "route"
DRAFTER_KV_TOKENS: Final = "drafter_kv_tokens"
ROUTES: Final = ("auto", "native", "bridge")
HOST_KEYS: Final = (ROUTE, DRAFTER_KV_TOKENS)
EXAMPLE: Final = '{"specdec": {"method": "..."}}'


@dataclass(frozen=True)
class Configured:
    """A configured configuration, and the registry that its plugins were loaded into."""

    registry: Registry
    resolved: ResolvedConfig


def target_info(model_config: Any, parallel_config: Any) -> TargetInfo:
    """Describe vLLM's target from its `ModelConfig` and `ParallelConfig`."""
    tokenizer = getattr(model_config, "tokenizer", None)
    return TargetInfo(
        model=model_config.model,
        hf_config=model_config.hf_config.to_dict(),
        vocab_size=model_config.get_vocab_size(),
        hidden_size=model_config.get_hidden_size(),
        num_layers=model_config.get_total_num_hidden_layers(),
        max_model_len=model_config.max_model_len,
        tensor_parallel_size=parallel_config.tensor_parallel_size,
        revision=model_config.revision,
        extra={} if tokenizer in (None, model_config.model) else {"tokenizer": tokenizer},
    )


def wanted(vllm_config: Any) -> dict[str, Any]:
    """Return the configuration that a `VllmConfig` carries for us, k included.

    It is in `speculative_config.specdec` where our plugin has read it, else in `additional_config["specdec"]`. Raises
    ConfigError if there is none, or if it gives another k than vLLM has.
    """
    speculative = vllm_config.speculative_config
    given = getattr(speculative, KEY, None)
    if given is None:
        additional = vllm_config.additional_config
        given = additional.get(KEY) if isinstance(additional, Mapping) else None
    if given is None:
        message = f"specdec_vllm.Proposer was asked for, and no method is named: add --additional-config {EXAMPLE}"
        raise ConfigError(message)
    return with_k(SpeculativeConfig.parse(given).as_json(), speculative.num_speculative_tokens)


def named(model: str) -> dict[str, str]:
    """Return the key of ours that a text under vLLM's `model` stands for, beside the method `specdec`.

    It is `method`, unless only a draft is installed under that name or it is a local path: then it is `model`.
    """
    catalog = Catalog.discover()
    if catalog.knows("proposer", model.rpartition(":")[2]):
        return {"method": model}
    is_draft = catalog.knows("draft", model.rpartition(":")[2]) or Path(model).expanduser().exists()
    return {"model": model} if is_draft else {"method": model}


def with_k(config: Mapping[str, Any], k: int | None) -> dict[str, Any]:
    """Return the configuration with vLLM's k in it; raises ConfigError if it has another one."""
    own = config.get(K)
    if own is not None and k is not None and own != k:
        message = f"{K} is {k} in --speculative-config and {own} in the options of specdec; leave the latter out"
        raise ConfigError(message)
    return {**config} if k is None else {**config, K: k}


def configure(config: Mapping[str, Any], target: TargetInfo) -> Configured:
    """Resolve a configuration for a target; raises ConfigError listing what is wrong, or a plugin's PluginError."""
    rule = config.get("rejection_sample_method")
    if rule not in (None, verification.RULE, verification.NAME):
        message = (
            f"rejection_sample_method is {rule!r}, and vLLM verifies by itself, by the rule {verification.RULE!r}: "
            "leave it out"
        )
        raise ConfigError(message)
    catalog = Catalog.discover()
    registry = Registry(Catalog([*catalog.records, verification.record(__version__)]), hookspecs=(hookspecs,))
    mine = {**config, "rejection_sample_method": verification.NAME}
    resolved = resolve(mine, target, registry, HOST_KEYS, host_has_methods=True)
    _check_host_keys(resolved)
    if resolved.traits.shape == "tree":
        message = f"{resolved.method} is set up to draft trees, and vLLM verifies chains only: set up chains"
        raise ConfigError(message)
    if resolved.traits.first_layers:
        message = (
            f"{resolved.method} runs the target's first {resolved.traits.first_layers} layers by themselves, and vLLM "
            "runs a target as a whole: use another method"
        )
        raise ConfigError(message)
    return Configured(registry, resolved)


def _check_host_keys(resolved: ResolvedConfig) -> None:
    tokens, route = resolved.host_keys.get(DRAFTER_KV_TOKENS), resolved.host_keys.get(ROUTE, ROUTES[0])
    if tokens is not None and (type(tokens) is not int or tokens < 1):
        message = f"{DRAFTER_KV_TOKENS} is {tokens!r}: give a whole number of at least 1, or leave it out"
        raise ConfigError(message)
    if route not in ROUTES:
        message = f"{ROUTE} is {route!r}: give one of {', '.join(ROUTES)}, or leave it out"
        raise ConfigError(message)


def needs_states(resolved: ResolvedConfig) -> bool:
    """Return whether the method must see the target's rows, states or answers, and not only ids."""
    return resolved.traits.rows != "none" or resolved.traits.verified_top_k > 0
