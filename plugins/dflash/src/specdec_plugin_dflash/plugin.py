"""The hooks of `dflash` and `dspark`; imports neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import (
        Default,
        Detection,
        DraftSource,
        Note,
        Problem,
        TargetHandle,
        TargetInfo,
        TargetSwap,
    )
    from specdec_core.traits import MethodTraits
    from specdec_plugin_dflash.options import DFlashOptions


class DFlashPlugin:
    """Heads that draft a block in one pass, as `dflash`; those with a Markov chain over the block, as `dspark`."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the method's keys."""
        from specdec_plugin_dflash.options import DFlashOptions, DSparkOptions

        return DSparkOptions if method == "dspark" else DFlashOptions

    @hookimpl
    def specdec_method_traits(
        self, method: str, config: SpeculativeConfig, draft: DraftSource | None, target: TargetInfo
    ) -> MethodTraits:
        """Return what the head reads, and what its drafts are."""
        from specdec_plugin_dflash.traits import traits_of

        return traits_of(method, config, draft, target)

    @hookimpl
    def specdec_method_defaults(self, method: str, draft: DraftSource | None) -> Sequence[Default]:
        """Return k: what the block was trained for."""
        from specdec_plugin_dflash.traits import defaults_of

        return defaults_of(method, draft)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim checkpoints that say so, or that have the tensors."""
        from specdec_plugin_dflash.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_override_hf_config(self, method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Turn the configuration of a speculators checkpoint into a plain one, and a bare name into a head's."""
        from specdec_plugin_dflash import speculators

        if speculators.is_speculators(hf_config):
            return speculators.converted(hf_config)
        return speculators.renamed(method, hf_config)

    @hookimpl
    def specdec_swap_target(self, source: DraftSource) -> TargetSwap | None:
        """Turn a speculators checkpoint given as the model into its target and itself as the draft."""
        from specdec_plugin_dflash.detection import swap

        return swap(source)

    @hookimpl
    def specdec_check(
        self, method: str, options: MethodOptions, draft: DraftSource | None, target: TargetInfo
    ) -> Sequence[Problem | Note]:
        """Return what is wrong with the checkpoint, the target and the options together."""
        from specdec_plugin_dflash.traits import problems_of

        return problems_of(method, cast("DFlashOptions", options), draft, target)

    @hookimpl
    def specdec_make_proposer(
        self,
        method: str,
        config: ResolvedConfig,
        options: MethodOptions,
        draft: DraftSource,
        target: TargetHandle,
        registry: Registry,
    ) -> Proposer:
        """Read the weights and build the drafter."""
        from specdec_plugin_dflash.building import make

        return make(method, config, cast("DFlashOptions", options), draft, target, registry.kernels)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(
        self, method: str, options: MethodOptions, draft: DraftSource | None, target: TargetInfo
    ) -> Mapping[str, Any] | Problem | None:
        """Return the keys with which vLLM runs the head by itself."""
        from specdec_plugin_dflash.vllm_keys import vllm_config

        return vllm_config(method, cast("DFlashOptions", options), draft, target)


plugin = DFlashPlugin()
