"""Which configured MTP modules vLLM 0.32 runs by itself, in keys of its `--speculative-config`; no vLLM, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_core.context import MethodContext
from specdec_core.sources import Problem
from specdec_plugin_mtp.fields import INDEX_SHARE
from specdec_plugin_mtp.options import MtpOptions
from specdec_plugin_mtp.reading import Reading


def vllm_config(ctx: MethodContext[MtpOptions]) -> Mapping[str, Any] | Problem | None:
    """Return the keys, or what stands against them."""
    options, draft = ctx.options, ctx.checkpoint
    reading = Reading.of(draft)
    if reading.family is not None and reading.family.recursive:
        message = "vLLM reads MTP modules out of the target's own checkpoint, and not files of speculators' type mtp"
        return Problem(key="model", message=message)
    if options.assistant_position == "newest":
        message = "vLLM's queries stand where the target's last row does"
        return Problem(key="assistant_position", message=message)
    modules, k = reading.n_predict or 1, ctx.config.num_speculative_tokens or 1
    if min(modules, k) > 1 and options.recurrence(modules) == "modules":
        message = f"its {modules} modules draft in sequence, and vLLM's runner uses the first one again"
        return Problem(key="mtp_recurrence", message=message)
    # Of a target's own modules vLLM finds the checkpoint by itself, and its quantization besides.
    inside = {"model": None} if draft.original.model == ctx.target.model else {}
    return {"method": ctx.method, **inside, INDEX_SHARE: options.index_share_for_mtp_iteration}
