"""The hooks of `eagle` and `eagle3`; imports neither numpy nor torch."""

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
    from specdec_plugin_eagle.options import EagleOptions


class EaglePlugin:
    """EAGLE-1 heads as `eagle`, EAGLE-3 and P-EAGLE heads as `eagle3`; chains, static and dynamic trees for each."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the keys that both methods share."""
        from specdec_plugin_eagle.options import EagleOptions

        return EagleOptions

    @hookimpl
    def specdec_method_traits(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> MethodTraits:
        """Return what the head reads, and what its drafts are."""
        from specdec_plugin_eagle.traits import traits_of

        return traits_of(method, config, cast("EagleOptions", options), draft, target)

    @hookimpl
    def specdec_method_defaults(
        self, method: str, options: MethodOptions, draft: DraftSource | None
    ) -> Sequence[Default]:
        """Return k: the nodes of a static tree, or what a speculators checkpoint proposes."""
        from specdec_plugin_eagle.traits import defaults_of

        return defaults_of(cast("EagleOptions", options), draft)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim checkpoints that say so, or that have the tensors."""
        from specdec_plugin_eagle.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_override_hf_config(self, method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Turn the configuration of a speculators checkpoint into a plain one."""
        from specdec_plugin_eagle import speculators

        return speculators.converted(hf_config) if speculators.is_speculators(hf_config) else None

    @hookimpl
    def specdec_swap_target(self, source: DraftSource) -> TargetSwap | None:
        """Turn a speculators checkpoint given as the model into its target and itself as the draft."""
        from specdec_plugin_eagle.detection import swap

        return swap(source)

    @hookimpl
    def specdec_check(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> Sequence[Problem | Note]:
        """Return what is wrong with the checkpoint, the target and the options together."""
        from specdec_plugin_eagle.traits import problems_of

        return problems_of(method, config, cast("EagleOptions", options), draft, target)

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
        from specdec_plugin_eagle.building import make

        return make(method, config, cast("EagleOptions", options), draft, target, registry.kernels)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(
        self, method: str, options: MethodOptions, draft: DraftSource | None, target: TargetInfo
    ) -> Mapping[str, Any] | Problem | None:
        """Return the keys with which vLLM runs the head by itself."""
        from specdec_plugin_eagle.vllm_keys import vllm_config

        return vllm_config(method, cast("EagleOptions", options), draft, target)


plugin = EaglePlugin()
