"""The hooks of `mlp_speculator`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Detection, DraftSource, Problem
    from specdec_core.traits import MethodTraits
    from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions


class MlpSpeculatorPlugin:
    """Speculators of fms-extras in all variants, tied or not; chains, and trees of the likeliest sequences."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions

        return MlpSpeculatorOptions

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        from specdec_plugin_mlp_speculator.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_override_hf_config(self, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        from specdec_plugin_mlp_speculator.settings import patch_of

        return patch_of(hf_config)

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[MlpSpeculatorOptions]) -> MethodTraits:
        from specdec_plugin_mlp_speculator.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[MlpSpeculatorOptions]) -> Sequence[Default]:
        from specdec_plugin_mlp_speculator.traits import defaults_of

        return defaults_of(ctx)

    @hookimpl
    def specdec_check(self, ctx: MethodContext[MlpSpeculatorOptions]) -> Sequence[Problem]:
        from specdec_plugin_mlp_speculator.traits import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[MlpSpeculatorOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_mlp_speculator.building import make

        return make(ctx, build)


plugin = MlpSpeculatorPlugin()
