"""The keys of the controllers in a speculative configuration; knows no controller."""

from __future__ import annotations

from pydantic import Field

from specdec_core.config.speculative import MethodOptions


class ControllerOptions(MethodOptions):
    """What all three controllers read."""

    controller_probe_every: int = Field(
        32,
        ge=2,
        description="A request that drafts nothing, or less than its method would, drafts again after so many steps, "
        "to see whether that pays by now.",
    )


class AdaptiveOptions(ControllerOptions):
    """The keys of `adaptive`."""

    controller_hysteresis: float = Field(
        0.02,
        ge=0.0,
        lt=1.0,
        description="Another number of drafts is chosen only if it promises more tokens per second by this share.",
    )
