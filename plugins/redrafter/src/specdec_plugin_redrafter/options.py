"""The keys of `redrafter` in a speculative configuration; knows no checkpoint."""

from __future__ import annotations

from typing import Final

from pydantic import Field, model_validator

from specdec_core.config.speculative import MethodOptions

KEPT: Final = 50  # likeliest ids of a beam that may follow, as in the method's own code
DEPTH: Final = 4  # drafts of a beam where `beam_depth` is left out


class RedrafterOptions(MethodOptions):
    """How the drafter drafts: id after id, or by a beam search if `num_beams` is given."""

    num_beams: int | None = Field(
        default=None,
        ge=1,
        le=KEPT,
        strict=True,
        description="Search with this many beams, and draft what is common to them once, as a tree. Left out: chains, "
        "one id after the other.",
    )
    beam_depth: int | None = Field(
        default=None,
        ge=1,
        strict=True,
        description=f"Drafts of a beam, the newest id not counted. Left out: {DEPTH}, or num_speculative_tokens where "
        "one beam is verified.",
    )
    verified_beams: int | None = Field(
        default=None,
        ge=1,
        strict=True,
        description="How many beams are verified, the best first; 1 makes chains, for hosts that verify no trees. Left "
        "out: all.",
    )

    @model_validator(mode="after")
    def _need_beams(self) -> RedrafterOptions:
        """Refuse keys of a beam search without one, and more verified beams than there are."""
        given = [key for key in ("beam_depth", "verified_beams") if getattr(self, key) is not None]
        if self.num_beams is None and given:
            message = f"{' and '.join(given)} belong to a beam search; give num_beams, or leave them out"
            raise ValueError(message)
        if self.num_beams is not None and self.verified > self.num_beams:
            message = f"verified_beams is {self.verified}, and there are {self.num_beams} beams; give at most as many"
            raise ValueError(message)
        return self

    @property
    def verified(self) -> int:
        """The number of beams that are verified; 1 without a search."""
        return self.verified_beams or self.num_beams or 1

    def depth(self, k: int | None) -> int:
        """Return how many drafts a beam has, for k drafts of a request (None: not known yet)."""
        return self.beam_depth or (k if k is not None and self.verified == 1 else DEPTH)
