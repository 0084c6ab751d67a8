"""Turns a configuration with the method `specdec` into one that vLLM runs; knows vLLM's class, and no method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.errors import ConfigError
from specdec_vllm.bridge import call, refusals
from specdec_vllm.log import logger
from specdec_vllm.routes import CUSTOM, FROM_IDS, Route, Trial, choose
from specdec_vllm.settings import HOST_KEYS, Configured, configure, target_info, with_k

__all__ = ["CUSTOM", "PROPOSER", "rewrite"]

PROPOSER: Final = FROM_IDS


def rewrite(speculative: Any, given: Mapping[str, Any], trial: Trial | None = None) -> None:
    """Turn a configuration of vLLM with the method `specdec` into one that vLLM runs.

    `given` is what the user set, as a configuration of ours without k; it is kept in `speculative.specdec` where a
    drafter of ours will read it. `trial` tries keys as a configuration of vLLM's own. Raises ConfigError or PluginError
    for what cannot be used.
    """
    parallel = speculative.target_parallel_config
    target = target_info(speculative.target_model_config, parallel)
    configured = configure(with_k(given, speculative.num_speculative_tokens), target)
    route = choose(configured, target, trial)
    logger.info("%s takes the route %r: %s", configured.resolved.method, route.name, route.reason)
    if route.name == "bridge":
        _check_bridge(configured, parallel)
    _write(speculative, route)
    if route.name == "native":
        speculative.specdec = None
    else:
        speculative.specdec = {**given, "method": configured.resolved.method}


def _write(speculative: Any, route: Route) -> None:
    speculative.model = None  # it named our method
    for key, value in route.keys.items():
        setattr(speculative, key, value)


def _check_bridge(configured: Configured, parallel: Any) -> None:
    method = configured.resolved.method
    problems = list(refusals.of_parallel(configured.resolved.traits, parallel))
    if not call.is_installed():
        problems.append("this vLLM is not the one that specdec knows, see the warnings above: use vLLM 0.32")
    if problems:
        raise ConfigError(f"{method} cannot run in vLLM with {HOST_KEYS[0]} 'bridge': {'; '.join(problems)}")
