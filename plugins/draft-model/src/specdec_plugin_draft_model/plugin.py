"""The hooks of `draft_model`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Detection, DraftSource, Problem
    from specdec_core.traits import MethodTraits
    from specdec_plugin_draft_model.options import DraftModelOptions


class DraftModelPlugin:
    """A causal language model as the drafter of a larger one."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_draft_model.options import DraftModelOptions

        return DraftModelOptions

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[DraftModelOptions]) -> MethodTraits:
        from specdec_plugin_draft_model.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        from specdec_plugin_draft_model.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_check(self, ctx: MethodContext[DraftModelOptions]) -> Sequence[Problem]:
        from specdec_plugin_draft_model.traits import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[DraftModelOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_draft_model.building import make

        return make(ctx, build)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(self, ctx: MethodContext[DraftModelOptions]) -> Mapping[str, Any] | Problem | None:
        from specdec_plugin_draft_model.vllm_keys import vllm_config

        return vllm_config(ctx)


plugin = DraftModelPlugin()
