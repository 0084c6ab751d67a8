"""The keys of `dflash` and `dspark` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions
from specdec_plugin_dflash.names import DSPARK


class DFlashOptions(MethodOptions):
    """What both methods can be told; vLLM's keys, and ours."""

    share_embeddings: bool | None = Field(
        default=None,
        description="Use the target's embedding instead of the head's own. Left out: the head's own if it has one that "
        "differs, with a warning.",
    )
    parallel_drafting: Literal[True] | None = Field(
        default=None, description="vLLM's key; only true can be given, as all drafts come from one pass anyway."
    )


class DSparkOptions(DFlashOptions):
    """What heads with a Markov chain over their drafts can be told besides."""

    dspark_draft_topk: int | None = Field(
        default=None,
        ge=1,
        strict=True,
        description="Only this many of the likeliest ids of each place, before the Markov head, can be drafted. Left "
        "out: what config.json has, or all.",
    )
    confidence_threshold: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="A draft ends before the first token whose estimated acceptance is below this. Left out: no draft "
        "is cut.",
    )


def options_of(method: str) -> type[DFlashOptions]:
    """Return the model of a method's keys."""
    return DSparkOptions if method == DSPARK else DFlashOptions
