"""The hooks of `predicted`; imports neither pydantic nor numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default
    from specdec_plugin_predicted.options import PredictedRequestOptions


class PredictedPlugin:
    """Drafts follow an expected output that the caller supplies with a request."""

    @hookimpl
    def specdec_request_options(self) -> type[PredictedRequestOptions]:
        from specdec_plugin_predicted.options import PredictedRequestOptions

        return PredictedRequestOptions

    @hookimpl
    def specdec_method_traits(self) -> MethodTraits:
        return MethodTraits(
            shape="chain", rows="none", draft_distribution="deterministic", weights="none", when_off="catch_up"
        )

    @hookimpl
    def specdec_method_defaults(self) -> Sequence[Default]:
        from specdec_core.sources import Default

        reason = "a right prediction is accepted whole, and a wrong one stops being drafted after a few differences"
        return [Default(key="num_speculative_tokens", value=15, reason=reason)]

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[Any], build: ProposerBuild) -> Proposer:
        from specdec_plugin_predicted.proposer import PredictedProposer

        return PredictedProposer(ctx.target.vocab_size, build.target.tokenizer)


plugin = PredictedPlugin()
