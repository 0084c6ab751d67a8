"""The hooks of `combine`; imports neither pydantic nor numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Problem
    from specdec_core.traits import MethodTraits
    from specdec_plugin_combine.options import CombineOptions


class CombinePlugin:
    """Drafts of several methods, put together by a rule."""

    @hookimpl
    def specdec_method_options(self) -> type[CombineOptions]:
        from specdec_plugin_combine.options import CombineOptions

        return CombineOptions

    @hookimpl
    def specdec_method_parts(self, options: CombineOptions) -> Sequence[Mapping[str, Any]]:
        return options.methods

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[CombineOptions]) -> MethodTraits:
        from specdec_plugin_combine.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[CombineOptions]) -> Sequence[Default]:
        from specdec_plugin_combine.traits import defaults_of

        return defaults_of(ctx)

    @hookimpl
    def specdec_check(self, ctx: MethodContext[CombineOptions]) -> Sequence[Problem]:
        from specdec_plugin_combine.traits import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[CombineOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_combine.proposer import make

        return make(ctx, build)


plugin = CombinePlugin()
