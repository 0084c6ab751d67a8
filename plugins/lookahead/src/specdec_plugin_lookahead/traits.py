"""What `lookahead` is, k where nobody gives one, and the least k that it works with."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.context import MethodContext
from specdec_core.sources import Default, Problem
from specdec_core.traits import MethodTraits
from specdec_plugin_lookahead.options import LookaheadOptions


def traits_of(ctx: MethodContext[LookaheadOptions]) -> MethodTraits:
    """Return trees of the window and the guesses, from what the target answered at earlier rows."""
    return MethodTraits(shape="tree", verified_top_k=1, max_tokens=ctx.options.nodes)


def defaults_of(ctx: MethodContext[LookaheadOptions]) -> Sequence[Default]:
    """Return k: all rows of a step but that of the newest id."""
    options = ctx.options
    reason = (
        f"a window of {options.window_size} and {options.guess_set_size} n-grams of {options.ngram_size} ids "
        f"are {options.nodes} rows"
    )
    return [Default(key="num_speculative_tokens", value=options.nodes, reason=reason)]


def problems_of(ctx: MethodContext[LookaheadOptions]) -> Sequence[Problem]:
    """Refuse a k that leaves no room for the window, without which no n-gram would ever be found."""
    k, needed = ctx.config.num_speculative_tokens, ctx.options.window_nodes
    if k is None or k >= needed:
        return []
    message = f"is {k}, and the window alone has {needed} rows, so that it could not be run whole"
    next_step = f"give at least {needed}, leave it out, or make window_size or ngram_size smaller"
    return [Problem(key="num_speculative_tokens", message=message, next_step=next_step)]
