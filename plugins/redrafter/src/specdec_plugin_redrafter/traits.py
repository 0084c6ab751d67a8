"""What a configured recurrent drafter needs and gives, which k it asks for, and what is wrong with it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem
from specdec_core.traits import MethodTraits
from specdec_plugin_redrafter.layout import RedrafterReader
from specdec_plugin_redrafter.options import RedrafterOptions


def traits_of(ctx: MethodContext[RedrafterOptions]) -> MethodTraits:
    """Return the traits; of a checkpoint that cannot be used, those of a usual one."""
    layout = None if ctx.draft is None else RedrafterReader(ctx.draft, ctx.target).layout()
    options, k = ctx.options, ctx.config.num_speculative_tokens
    searches = options.num_beams is not None
    drawn = ctx.samples_drafts and not searches  # a beam search keeps the likeliest ids
    return MethodTraits(
        shape="tree" if options.verified > 1 else "chain",
        rows="last",
        hidden=True,
        draft_distribution="soft" if drawn else "deterministic",
        shares_noise=drawn and ctx.shares_noise,
        weights="own",
        vocabulary="subset" if layout is not None and layout.rows < ctx.target.vocab_size else "target",
        max_tokens=options.verified * options.depth(k) if searches else None,
        when_off="gap",  # rows that were dropped are not missed: only the last one is read
    )


def defaults_of(ctx: MethodContext[RedrafterOptions]) -> Sequence[Default]:
    """Return k: the drafts of all verified beams, in which common beginnings may take fewer places."""
    options = ctx.options
    beams, depth = options.verified, options.depth(None)
    reason = f"the most nodes of {beams} beams of {depth} drafts" if beams > 1 else f"a chain of {depth} drafts"
    return [Default(key="num_speculative_tokens", value=beams * depth, reason=reason)]


def problems_of(ctx: MethodContext[RedrafterOptions]) -> Sequence[Problem]:
    """Return everything that is wrong with the checkpoint, and with a beam search for it."""
    reading = RedrafterReader(ctx.checkpoint, ctx.target)
    layout, beams = reading.layout(), ctx.options.num_beams
    problems = [*reading.problems]
    ids = ctx.target.vocab_size if layout is None else min(layout.rows, ctx.target.vocab_size)
    if layout is not None and beams is not None and beams > ids:
        message = f"{beams} beams would begin with as many ids, and the drafter knows {ids}"
        problems.append(Problem(key="num_beams", message=message, next_step="give fewer beams"))
    return problems
