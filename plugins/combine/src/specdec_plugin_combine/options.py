"""The keys of `combine` in a speculative configuration; knows no proposer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from specdec_core.config.speculative import MethodOptions

Rule = Literal["first", "longest", "extend", "merge", "learned"]


class CombineOptions(MethodOptions):
    """Which methods draft, and what becomes of their drafts."""

    methods: tuple[dict[str, Any], ...] = Field(
        min_length=2,
        description="The parts, each a speculative configuration of its own: method, its options, its checkpoint. "
        "Their order matters: earlier ones are preferred.",
    )
    rule: Rule = Field(
        "first",
        description="first: the first part that drafts. longest: the longest draft. extend: the first part's chain, "
        "continued by a later part whose draft begins with it. merge: one tree of all drafts. learned: for each "
        "request the part that has brought most so far.",
    )


def parts_of(options: CombineOptions) -> Sequence[Mapping[str, Any]]:
    """Return the configurations of the methods that drafts come from."""
    return options.methods
