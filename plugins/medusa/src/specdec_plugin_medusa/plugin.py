"""The hooks of `medusa`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Detection, DraftSource, Problem, TargetInfo
    from specdec_core.traits import MethodTraits
    from specdec_plugin_medusa.options import MedusaOptions


class MedusaPlugin:
    """Medusa heads of both generations of files, alone or inside the target's checkpoint; chains and static trees."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_medusa.options import MedusaOptions

        return MedusaOptions

    @hookimpl
    def specdec_default_model(self, target: TargetInfo) -> Default | None:
        from specdec_plugin_medusa.detection import default_model_of

        return default_model_of(target)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        from specdec_plugin_medusa.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_override_hf_config(self, hf_config: Mapping[str, Any], target: TargetInfo) -> Mapping[str, Any] | None:
        from specdec_plugin_medusa.settings import patch_of

        return patch_of(hf_config, target)

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[MedusaOptions]) -> MethodTraits:
        from specdec_plugin_medusa.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[MedusaOptions]) -> Sequence[Default]:
        from specdec_plugin_medusa.traits import defaults_of

        return defaults_of(ctx)

    @hookimpl
    def specdec_check(self, ctx: MethodContext[MedusaOptions]) -> Sequence[Problem]:
        from specdec_plugin_medusa.traits import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[MedusaOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_medusa.building import make

        return make(ctx, build)


plugin = MedusaPlugin()
