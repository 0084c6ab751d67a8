"""The hooks of `lookahead`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Problem
    from specdec_plugin_lookahead.options import LookaheadOptions


class LookaheadPlugin:
    """Lookahead decoding: the target guesses at later places, and n-grams of these guesses are drafted."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_lookahead.options import LookaheadOptions

        return LookaheadOptions

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[LookaheadOptions]) -> MethodTraits:
        return MethodTraits(shape="tree", verified_top_k=1, max_tokens=ctx.options.nodes)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[LookaheadOptions]) -> Sequence[Default]:
        """Return k: all rows of a step but that of the newest id."""
        from specdec_core.sources import Default

        options = ctx.options
        reason = (
            f"a window of {options.window_size} and {options.guess_set_size} n-grams of {options.ngram_size} ids "
            f"are {options.nodes} rows"
        )
        return [Default(key="num_speculative_tokens", value=options.nodes, reason=reason)]

    @hookimpl
    def specdec_check(self, ctx: MethodContext[LookaheadOptions]) -> Sequence[Problem]:
        """Refuse a k that leaves no room for the window, without which no n-gram would ever be found."""
        from specdec_core.sources import Problem

        k, needed = ctx.config.num_speculative_tokens, ctx.options.window_nodes
        if k is None or k >= needed:
            return []
        message = f"is {k}, and the window alone has {needed} rows, so that it could not be run whole"
        next_step = f"give at least {needed}, leave it out, or make window_size or ngram_size smaller"
        return [Problem(key="num_speculative_tokens", message=message, next_step=next_step)]

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[LookaheadOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_lookahead.proposer import LookaheadProposer

        return LookaheadProposer(ctx.options)


plugin = LookaheadPlugin()
