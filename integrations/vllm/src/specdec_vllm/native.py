"""From a configured configuration to one of vLLM's own methods; asks the plugin, knows no method, imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.context import MethodContext
from specdec_core.errors import CheckStageError
from specdec_core.registry.loader import Registry
from specdec_core.sources import Problem, TargetInfo
from specdec_vllm.settings import DRAFTER_KV_TOKENS, Configured, K

HOOK: Final = "specdec_vllm_config"
# Common keys that vLLM has under the same names; left out where the user left them out.
SHARED: Final = (
    "revision",
    "max_model_len",
    "draft_tensor_parallel_size",
    "draft_sample_method",
    "num_speculative_tokens_per_batch_size",
)
# Common keys that no method of vLLM honours: what they ask for is done by drafters of ours.
OURS: Final = {
    "disable_by_batch_size": "vLLM has no such key any more",
    "kernels": "vLLM has kernels of its own",
    "max_step_tokens": "vLLM has no such key",
    "controller": "methods of vLLM ask no controller",
    "cut_by_cost": "methods of vLLM cut no drafts by what they cost",
    "observers": "methods of vLLM tell nobody but its metrics",
}


def translated(configured: Configured, target: TargetInfo) -> Mapping[str, Any] | str:
    """Return the keys of vLLM's own configuration, or why there are none. Raises PluginError of a plugin that fails."""
    resolved = configured.resolved
    for key, why in OURS.items():
        if getattr(resolved.config, key):
            return f"{key} was given, and {why}"
    if DRAFTER_KV_TOKENS in resolved.host_keys:
        return f"{DRAFTER_KV_TOKENS} was given, and methods of vLLM keep their rows in vLLM's own cache"
    answer = ask(configured.registry, resolved, target)
    if answer is None:
        return f"{resolved.record.distribution} names no method of vLLM that does the same"
    if isinstance(answer, Problem):
        return str(answer)
    return {key: value for key, value in {**_shared(resolved), **answer}.items() if value is not None}


def ask(registry: Registry, resolved: ResolvedConfig, target: TargetInfo) -> Mapping[str, Any] | Problem | None:
    """Return the plugin's answer; raises CheckStageError if it is of another kind."""
    answer: Any = registry.call(registry.plugin(resolved.record), HOOK, ctx=MethodContext.of(resolved, target))
    if answer is None or isinstance(answer, Problem):
        return answer
    if not isinstance(answer, Mapping) or not isinstance(answer.get("method"), str):
        problem = f"{HOOK} returned {answer!r}, expected keys of vLLM with its `method`, a Problem, or None"
        raise CheckStageError(resolved.record, problem, "Tell the authors of the plugin.")
    return answer


def _shared(resolved: ResolvedConfig) -> dict[str, Any]:
    config = resolved.config.as_json()
    given: dict[str, Any] = {key: config[key] for key in SHARED if key in config}
    if resolved.draft is not None:
        given["model"] = resolved.draft.model
        if resolved.draft.revision is None:  # a local path has none
            given.pop("revision", None)
    return {K: resolved.num_speculative_tokens, **given}
