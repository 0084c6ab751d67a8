"""The keys of `early_exit` in a speculative configuration; knows no target."""

from __future__ import annotations

from pydantic import Field

from specdec_core.config.speculative import MethodOptions


class EarlyExitOptions(MethodOptions):
    """Behind which layer the target's drafts leave it, and when a draft ends."""

    exit_layer: int | None = Field(
        default=None,
        ge=1,
        description="How many of the target's layers draft. Left out: what the target's generation_config.json or "
        "config.json has as assistant_early_exit, else a quarter of its layers.",
    )
    draft_confidence_threshold: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="A draft ends behind the first token to which the first layers gave a lower probability. Left out: "
        "drafts are as long as allowed.",
    )
