"""The hooks of `suffix`; imports neither pydantic, numpy nor torch."""

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
    from specdec_core.traits import Shape
    from specdec_plugin_suffix.options import SuffixOptions


class SuffixPlugin:
    """Suffix decoding: drafts from the request's own text and from the responses of others."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_suffix.options import SuffixOptions

        return SuffixOptions

    @hookimpl
    def specdec_request_options(self) -> type[RequestOptions]:
        from specdec_plugin_suffix.options import SuffixRequestOptions

        return SuffixRequestOptions

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[SuffixOptions]) -> MethodTraits:
        shape: Shape = "tree" if ctx.options.tree_drafts else "chain"
        return MethodTraits(shape=shape, remembers=ctx.options.suffix_decoding_max_cached_requests > 0)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[SuffixOptions]) -> Sequence[Default]:
        """Return k: as vLLM does, the depth of the tree."""
        from specdec_core.sources import Default

        depth = ctx.options.suffix_decoding_max_tree_depth
        reason = f"no draft is longer than the tree is deep, and that is {depth}"
        return [Default(key="num_speculative_tokens", value=depth, reason=reason)]

    @hookimpl
    def specdec_check(self, ctx: MethodContext[SuffixOptions]) -> Sequence[Problem]:
        from specdec_plugin_suffix.checking import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[SuffixOptions], build: ProposerBuild) -> Proposer:
        """Build the proposer on the best installed backend; a cache file is read now."""
        from specdec_plugin_suffix.proposer import SuffixProposer

        return SuffixProposer(ctx.options, build.target.info.vocab_size, build.kernels.get("suffix_forest"))


plugin = SuffixPlugin()
