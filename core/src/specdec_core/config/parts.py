"""Resolves the parts of a method that is made of others; knows no method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec_core.config.options import MethodOptions
from specdec_core.config.resolution import Resolution
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import CheckStageError, ConfigError
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.sources import Problem

HOOK: Final = "specdec_method_parts"
KEY: Final = "methods"
K: Final = "num_speculative_tokens"
# Keys that are the whole's business: a part that sets one would be heard by nobody.
OF_THE_WHOLE: Final = (
    "rejection_sample_method",
    "controller",
    "cut_by_cost",
    "observers",
    "kernels",
    "max_step_tokens",
    "disable_by_batch_size",
    "num_speculative_tokens_per_batch_size",
)
DECIDED_ONCE: Final = ("rejection_sample_method", "noise", "lossy")


def resolve_parts(resolution: Resolution, plugin: LoadedPlugin, options: MethodOptions) -> tuple[ResolvedConfig, ...]:
    """Resolve what the method declares as its parts; problems are noted under the part's place."""
    given: Any = resolution.call(plugin, HOOK, options=options)
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, Mapping) for one in given):
        problem = f"{HOOK} returned {type(given).__name__}, expected a sequence of configurations"
        raise CheckStageError(plugin.record, problem, "Tell the authors of the plugin.")
    resolved = [_one(resolution, f"{KEY}[{i}]", part) for i, part in enumerate(given)]
    return tuple(part for part in resolved if part is not None)


def _one(resolution: Resolution, place: str, part: Mapping[str, Any]) -> ResolvedConfig | None:
    known = len(resolution.problems)
    for key in OF_THE_WHOLE:
        if part.get(key) not in (None, [], ()):
            problem = Problem(key=f"{place}.{key}", message="is a key of the whole", next_step=f"give it beside {KEY}")
            resolution.problems.append(problem)
    if len(resolution.problems) > known:
        return None
    whole = resolution.config
    config = {K: whole.num_speculative_tokens, **part, "rejection_sample_method": whole.rejection_sample_method}
    try:
        resolved = resolution.resolve_part({key: value for key, value in config.items() if value is not None})
    except ConfigError as error:
        resolution.problems.append(Problem(key=place, message=str(error)))
        return None
    if resolved.parts:
        message = f"{resolved.method} is made of parts itself, and parts have none"
        resolution.problems.append(Problem(key=place, message=message, next_step=f"list its parts in {KEY}"))
        return None
    for decision in resolved.decisions:
        if decision.key in DECIDED_ONCE:
            continue
        resolution.decide(f"{place}.{decision.key}", decision.value, decision.reason)
    return resolved
