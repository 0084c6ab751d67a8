"""The hooks of `mtp`; imports neither pydantic, numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Default, Detection, DraftSource, Problem, TargetInfo, TargetSwap
    from specdec_core.traits import MethodTraits
    from specdec_plugin_mtp.options import MtpOptions


class MtpPlugin:
    """Multi-token-prediction modules inside the target's own checkpoint, of every family in `families`."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_mtp.options import MtpOptions

        return MtpOptions

    @hookimpl
    def specdec_default_model(self, target: TargetInfo) -> Default | None:
        from specdec_plugin_mtp.traits import default_model_of

        return default_model_of(target)

    @hookimpl
    def specdec_load_target_as(self, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the keys of a target that is made like one of a known type."""
        from specdec_plugin_mtp.overriding import family_of

        family = family_of(hf_config)
        return None if family is None else family.loads_as or None

    @hookimpl
    def specdec_override_hf_config(self, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        from specdec_plugin_mtp.overriding import patch_of

        return patch_of(hf_config)

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[MtpOptions]) -> MethodTraits:
        from specdec_plugin_mtp.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[MtpOptions]) -> Sequence[Default]:
        from specdec_plugin_mtp.traits import defaults_of

        return defaults_of(ctx)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        from specdec_plugin_mtp.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_swap_target(self, source: DraftSource) -> TargetSwap | None:
        from specdec_plugin_mtp.detection import swap

        return swap(source)

    @hookimpl
    def specdec_check(self, ctx: MethodContext[MtpOptions]) -> Sequence[Problem]:
        from specdec_plugin_mtp.checking import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[MtpOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_mtp.building import make

        return make(ctx, build)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(self, ctx: MethodContext[MtpOptions]) -> Mapping[str, Any] | Problem | None:
        from specdec_plugin_mtp.vllm_keys import vllm_config

        return vllm_config(ctx)


mtp = MtpPlugin()
