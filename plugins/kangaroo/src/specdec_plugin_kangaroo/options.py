"""The keys of `kangaroo` in a speculative configuration; knows no checkpoint and no target."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from specdec_core.config.speculative import MethodOptions

THRESHOLD: Final = 0.6  # of the commands that the authors publish


class KangarooOptions(MethodOptions):
    """Behind which layer the adapter stands, and when a draft ends."""

    exit_layer: int | None = Field(
        default=None,
        ge=1,
        description="How many of the target's layers run before the adapter: the number that it was trained behind. "
        "No checkpoint names it, so it has to be given.",
    )
    draft_confidence_threshold: float | None = Field(
        default=THRESHOLD,
        ge=0.0,
        le=1.0,
        description="A draft ends behind the first token to which the adapter gave a lower probability. null: drafts "
        "are as long as allowed.",
    )
