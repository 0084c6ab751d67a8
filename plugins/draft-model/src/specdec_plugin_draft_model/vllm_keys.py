"""Which configured draft models vLLM 0.32 runs by itself, in keys of its `--speculative-config`; no vLLM, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_core.context import MethodContext
from specdec_core.sources import Problem
from specdec_plugin_draft_model.options import DraftModelOptions
from specdec_plugin_draft_model.traits import is_parallel, is_text_level


def vllm_config(ctx: MethodContext[DraftModelOptions]) -> Mapping[str, Any] | Problem | None:
    """Return the keys, or what stands against them."""
    options = ctx.options
    if is_text_level(options):
        return Problem(key="heterogeneous_vocab_method", message="vLLM has no drafts on the level of texts")
    if options.use_heterogeneous_vocab and ctx.samples_drafts:
        return Problem(key="draft_sample_method", message="vLLM draws no drafts of another vocabulary")
    ours = {
        "draft_confidence_threshold": options.draft_confidence_threshold is not None,
        "quantization": options.quantization is not None,
        "trust_remote_code": options.trust_remote_code,
    }
    for key, given in ours.items():
        if given:
            return Problem(key=key, message="it was given, and vLLM does not do that for draft models")
    keys: dict[str, Any] = {"method": ctx.method}
    if is_parallel(options, ctx.checkpoint):
        keys["parallel_drafting"] = True
    if options.use_heterogeneous_vocab:
        keys["use_heterogeneous_vocab"] = True
    return keys
