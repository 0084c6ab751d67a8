"""The keys of `mtp` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions

Recurrence = Literal["reuse", "modules"]


class MtpOptions(MethodOptions):
    """How MTP modules make the drafts after the first."""

    mtp_recurrence: Literal["auto", "reuse", "modules"] = Field(
        default="auto",
        description="What makes the drafts of a step. reuse: module 0 again and again. modules: one module a draft, "
        "each with keys and values of its own, and the first again after the last. auto: modules if there are several.",
    )
    index_share_for_mtp_iteration: bool | None = Field(
        default=None,
        strict=True,
        description="vLLM's key: whether the later drafts of a step attend where the first one did. Only sparse "
        "attention can, and no family that drafts here has it, so true is refused.",
    )

    assistant_position: Literal["last", "newest"] | None = Field(
        default=None,
        description="Where the queries of a Gemma 4 assistant stand, in all drafts of a step. last: where the target's "
        "last row does, as in vLLM. newest: where the newest id does, as in transformers. Left out: last.",
    )

    @property
    def position_offset(self) -> int:
        """What an assistant's position is, counted from that of the newest id."""
        return 0 if self.assistant_position == "newest" else -1

    def recurrence(self, modules: int) -> Recurrence:
        """Return what runs for the drafts after the first, of a checkpoint with that many modules."""
        if self.mtp_recurrence == "auto":
            return "modules" if modules > 1 else "reuse"
        return self.mtp_recurrence
