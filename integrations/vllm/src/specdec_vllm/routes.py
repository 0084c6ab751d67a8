"""Which way a method takes into vLLM, and why: vLLM's own method, or a drafter of ours inside of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError
from specdec_core.sources import TargetInfo
from specdec_vllm.native import translated
from specdec_vllm.settings import ROUTE, Configured, needs_states

CUSTOM: Final = "custom_class"
FROM_IDS: Final = "specdec_vllm.Proposer"
FROM_STATES: Final = "specdec_vllm.bridge.proposer.StateProposer"
# Tries keys as vLLM's own configuration; returns what is wrong with them.
Trial = Callable[[Mapping[str, Any]], str | None]


@dataclass(frozen=True)
class Route:
    """The way that a configuration takes.

    name    "native" (a method of vLLM), "bridge" (ours, shown the target's states) or "ids" (ours, shown ids)
    keys    of vLLM's `--speculative-config`
    reason  why this way
    """

    name: str
    keys: Mapping[str, Any]
    reason: str


def choose(configured: Configured, target: TargetInfo, trial: Trial | None = None) -> Route:
    """Return the route. Raises ConfigError if there is none, or not the one that the user wants, or a PluginError.

    `trial` is asked whether vLLM takes the keys of its own method; without it the keys are taken to be right.
    """
    wish = configured.resolved.host_keys.get(ROUTE, "auto")
    if wish == "bridge":
        return _ours(configured, "route is 'bridge'")
    keys = translated(configured, target)
    refused = keys if isinstance(keys, str) else None if trial is None else trial(keys)
    if refused is None and not isinstance(keys, str):
        because = "route is 'native'" if wish == "native" else f"vLLM runs {configured.resolved.method} by itself"
        return Route("native", keys, because + _shorter(configured, target))
    if wish == "native":
        message = (
            f"route is 'native', and vLLM cannot run {configured.resolved.method} by itself: {refused}; leave route out"
        )
        raise ConfigError(message)
    return _ours(configured, f"not native: {refused}")


def _shorter(configured: Configured, target: TargetInfo) -> str:
    """Return what to know of vLLM's own method where the draft's config.json names a shorter context."""
    draft, traits = configured.resolved.draft, configured.resolved.traits
    end = None if draft is None or traits.weights != "own" else draft.max_model_len
    if end is None or end >= target.max_model_len:
        return ""
    return f" (it drafts for nobody while any request is near position {end}, where the draft's config.json ends)"


def _ours(configured: Configured, reason: str) -> Route:
    resolved = configured.resolved
    if resolved.drafter_problems:
        message = f"specdec has no drafter for this: {'; '.join(map(str, resolved.drafter_problems))} ({reason})"
        raise ConfigError(message)
    if resolved.traits.target_keys:
        message = (
            f"{resolved.method} attends to the target's keys and values here, and vLLM keeps those to itself: use "
            f"another method ({reason})"
        )
        raise ConfigError(message)
    why = _why_bridge(resolved)
    keys = {
        "method": CUSTOM,
        "model": FROM_STATES if why else FROM_IDS,
        "num_speculative_tokens": resolved.num_speculative_tokens,
    }
    return Route("bridge" if why else "ids", keys, f"{why or 'it drafts from ids'}; {reason}")


def _why_bridge(resolved: ResolvedConfig) -> str:
    """Return what of a method needs more than the ids that vLLM gives to any drafter, empty if nothing does."""
    if needs_states(resolved):
        return "it reads the target's states" if resolved.traits.rows != "none" else "it reads the target's answers"
    if resolved.traits.draft_distribution == "soft":
        return "its drafts are drawn, and vLLM is told their distributions"
    return "it keeps a bounded cache of its own" if resolved.traits.weights != "none" else ""
