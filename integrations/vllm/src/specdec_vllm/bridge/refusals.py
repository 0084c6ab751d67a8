"""Which setups of vLLM a method can run in that is shown the target's rows; each refusal states what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specdec_core.traits import MethodTraits

PARALLEL = {
    "tensor_parallel_size": "the target's embedding and head are spread over devices, and no drafter is held whole by "
    "each of them yet",
    "pipeline_parallel_size": "the target's embedding and head are in different processes",
    "prefill_context_parallel_size": "each process sees a part of the rows only",
    "decode_context_parallel_size": "each process sees a part of the rows only",
}


def of_parallel(traits: MethodTraits, parallel_config: Any) -> Iterator[str]:
    """Yield what of vLLM's `ParallelConfig` is in the way."""
    if traits.rows == "none":
        return
    for key, why in PARALLEL.items():
        size = getattr(parallel_config, key, 1)
        if size > 1:
            yield f"{key} is {size}, and {why}: set it to 1, or use a method that vLLM runs by itself"


def problems_of(traits: MethodTraits, vllm_config: Any) -> list[str]:
    """Return what of a `VllmConfig` is in the way; the start of the engine is where that is said."""
    found = list(of_parallel(traits, vllm_config.parallel_config))
    if traits.rows == "all" and getattr(vllm_config.cache_config, "kv_sharing_fast_prefill", False):
        found.append("kv_sharing_fast_prefill leaves states of prompts out: switch it off")
    if vllm_config.scheduler_config.async_scheduling:
        found.append("asynchronous scheduling drafts before ids are known: leave --async-scheduling out")
    return found
