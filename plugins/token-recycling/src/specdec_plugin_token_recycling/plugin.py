"""The hooks of `token_recycling`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, RequestOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Problem
    from specdec_plugin_token_recycling.options import RecyclingOptions

NODES = 15  # with the newest id, sixteen rows
DEPTH = 5  # of a chain


class RecyclingPlugin:
    """Token recycling: drafts from what the target answered at earlier rows, rejected ones included."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_token_recycling.options import RecyclingOptions

        return RecyclingOptions

    @hookimpl
    def specdec_request_options(self) -> type[RequestOptions]:
        from specdec_plugin_token_recycling.options import RecyclingRequestOptions

        return RecyclingRequestOptions

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[RecyclingOptions]) -> MethodTraits:
        options = ctx.options
        return MethodTraits(
            shape="chain" if options.tree == "chain" else "tree",
            remembers=options.shared,
            verified_top_k=options.candidates,
            max_tokens=len(options.template) if options.template is not None else None,
        )

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[RecyclingOptions]) -> Sequence[Default]:
        """Return k."""
        from specdec_core.sources import Default

        options = ctx.options
        if options.template is not None:
            value, reason = len(options.template), f"the template has {len(options.template)} nodes"
        elif options.tree == "chain":
            value, reason = DEPTH, "candidates of candidates are seldom right further on"
        else:
            value, reason = NODES, "with the newest id sixteen rows, which cost little more than one"
        return [Default(key="num_speculative_tokens", value=value, reason=reason)]

    @hookimpl
    def specdec_check(self, ctx: MethodContext[RecyclingOptions]) -> Sequence[Problem]:
        from specdec_plugin_token_recycling.checking import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[RecyclingOptions], build: ProposerBuild) -> Proposer:
        """Build the proposer on the best installed backend; a file of candidates is read now."""
        from specdec_plugin_token_recycling.proposer import RecyclingProposer

        table = build.kernels.get("recycling_table")
        return RecyclingProposer(ctx.options, build.target.info.vocab_size, build.num_speculative_tokens, table)


plugin = RecyclingPlugin()
