"""The hooks of `dflash` and `dspark`; imports neither pydantic, numpy nor torch."""

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
    from specdec_plugin_dflash.options import DFlashOptions


class DFlashPlugin:
    """Heads that draft a block in one pass, as `dflash`; those with a Markov chain over the block, as `dspark`."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        from specdec_plugin_dflash.options import DFlashOptions, DSparkOptions

        return DSparkOptions if method == "dspark" else DFlashOptions

    @hookimpl
    def specdec_method_traits(self, ctx: MethodContext[DFlashOptions]) -> MethodTraits:
        from specdec_plugin_dflash.traits import traits_of

        return traits_of(ctx)

    @hookimpl
    def specdec_method_defaults(self, ctx: MethodContext[DFlashOptions]) -> Sequence[Default]:
        from specdec_plugin_dflash.traits import defaults_of

        return defaults_of(ctx)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        from specdec_plugin_dflash.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_swap_target(self, source: DraftSource) -> TargetSwap | None:
        from specdec_plugin_dflash.detection import swap

        return swap(source)

    @hookimpl
    def specdec_override_hf_config(self, method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        from specdec_plugin_dflash import speculators

        if speculators.is_speculators(hf_config):
            return speculators.converted(hf_config)
        return speculators.renamed(method, hf_config)

    @hookimpl
    def specdec_check(self, ctx: MethodContext[DFlashOptions]) -> Sequence[Problem | Note]:
        from specdec_plugin_dflash.traits import problems_of

        return problems_of(ctx)

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[DFlashOptions], build: ProposerBuild) -> Proposer:
        from specdec_plugin_dflash.building import make

        return make(ctx, build)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(self, ctx: MethodContext[DFlashOptions]) -> Mapping[str, Any] | Problem | None:
        from specdec_plugin_dflash.vllm_keys import vllm_config

        return vllm_config(ctx)


plugin = DFlashPlugin()
