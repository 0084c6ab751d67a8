"""The hooks of `eagle` and `eagle3`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Detection, DraftSource, Note, Problem, TargetSwap
    from specdec_core.traits import MethodTraits
    from specdec_plugin_eagle.options import EagleOptions


class EaglePlugin:
    """EAGLE-1 heads as `eagle`, EAGLE-3 and P-EAGLE heads as `eagle3`; chains, static and dynamic trees for each."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_eagle.options import EagleOptions

        return EagleOptions

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[EagleOptions]) -> MethodTraits:
        from specdec_plugin_eagle.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[EagleOptions]) -> Sequence[Default]:
        from specdec_plugin_eagle.traits import defaults_of

        return defaults_of(ctx)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        from specdec_plugin_eagle.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_swap_target(self, source: DraftSource) -> TargetSwap | None:
        from specdec_plugin_eagle.detection import swap

        return swap(source)

    @hookimpl
    def specdec_override_hf_config(self, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        from specdec_plugin_eagle import speculators

        return speculators.converted(hf_config) if speculators.is_speculators(hf_config) else None

    @hookimpl
    def specdec_check(self, ctx: MethodContext[EagleOptions]) -> Sequence[Problem | Note]:
        from specdec_plugin_eagle.traits import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[EagleOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_eagle.building import make

        return make(ctx, build)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(self, ctx: MethodContext[EagleOptions]) -> Mapping[str, Any] | Problem | None:
        from specdec_plugin_eagle.vllm_keys import vllm_config

        return vllm_config(ctx)


plugin = EaglePlugin()
