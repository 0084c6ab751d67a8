"""What a combination needs and gives, from the traits of its parts; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem
from specdec_core.traits import MethodTraits, WhenOff
from specdec_plugin_combine.options import CombineOptions

# Under these rules a part's draft is taken or left by what was drafted. A drawn draft that was chosen so no longer has
# the distribution that it was drawn from; it is a point mass then, which verification takes exactly whatever chose it.
CHOSEN_BY_CONTENT = ("longest", "merge")


def draws_stay(rule: str) -> bool:
    """Return whether drafts that were drawn are verified with the distribution that they were drawn from."""
    return rule not in CHOSEN_BY_CONTENT


def traits_of(ctx: MethodContext[CombineOptions]) -> MethodTraits:
    """Return the traits: what any part needs, and what the rule makes of their drafts."""
    parts = [part.traits for part in ctx.parts]
    soft = any(traits.draft_distribution == "soft" for traits in parts)
    trees = ctx.options.rule == "merge" or any(traits.shape == "tree" for traits in parts)
    rows = {traits.rows for traits in parts}
    lengths = [traits.max_tokens for traits in parts]
    bounded = ctx.options.rule != "merge" and None not in lengths
    return MethodTraits(
        shape="tree" if trees else "chain",
        rows="all" if "all" in rows else "last" if "last" in rows else "none",
        hidden=any(traits.hidden for traits in parts),
        aux_layers=tuple(sorted({layer for traits in parts for layer in traits.aux_layers})),
        draft_distribution="soft" if soft and (draws_stay(ctx.options.rule) or _shares(parts)) else "deterministic",
        shares_noise=_shares(parts),
        remembers=any(traits.remembers for traits in parts),
        max_tokens=max((n for n in lengths if n is not None), default=None) if bounded else None,
        when_off=_when_off(parts),
        extra_slots=max((part.extra_slots for part in ctx.parts), default=0),
        verified_top_k=max((traits.verified_top_k for traits in parts), default=0),
        num_lookahead_slots=max((part.num_lookahead_slots for part in ctx.parts), default=0),
        first_layers=max((traits.first_layers for traits in parts), default=0),
        target_keys=any(traits.target_keys for traits in parts),
    )


def _shares(parts: Sequence[MethodTraits]) -> bool:
    return any(traits.shares_noise for traits in parts)


def _when_off(parts: Sequence[MethodTraits]) -> WhenOff:
    modes = {traits.when_off for traits in parts}
    return "retire" if "retire" in modes else "gap" if "gap" in modes else "catch_up"


def defaults_of(ctx: MethodContext[CombineOptions]) -> Sequence[Default]:
    """Return k: the largest k of the parts."""
    if not ctx.parts:
        return []
    most = max(part.num_speculative_tokens for part in ctx.parts)
    return [Default(key="num_speculative_tokens", value=most, reason=f"the largest of its parts, {most}")]


def problems_of(ctx: MethodContext[CombineOptions]) -> list[Problem]:
    """Return what does not fit together."""
    problems = []
    if ctx.options.rule == "extend" and any(part.traits.shape == "tree" for part in ctx.parts):
        message = "'extend' continues a chain, and one of the parts drafts trees"
        problems.append(Problem(key="rule", message=message, next_step="use merge, or a part that drafts chains"))
    names: dict[str, Any] = {}
    for i, part in enumerate(ctx.parts):
        if (same := names.setdefault(part.method, i)) != i and part.options == ctx.parts[same].options:
            message = f"is the same as methods[{same}], so that it can only draft the same"
            problems.append(Problem(key=f"methods[{i}]", message=message, next_step="leave one of them out"))
    return problems
