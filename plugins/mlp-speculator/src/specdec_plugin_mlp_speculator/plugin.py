"""The hooks of `mlp_speculator`; imports neither pydantic nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import Default, Detection, DraftSource, Problem, TargetHandle, TargetInfo
    from specdec_core.traits import MethodTraits
    from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions


class MlpSpeculatorPlugin:
    """Speculators of fms-extras in all variants, tied or not; chains, and trees of the likeliest sequences."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the keys of the method."""
        from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions

        return MlpSpeculatorOptions

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim checkpoints that say so, or that have the tensors."""
        from specdec_plugin_mlp_speculator.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_override_hf_config(self, method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Spell the keys of all trainers as vLLM does."""
        from specdec_plugin_mlp_speculator.settings import patch_of

        return patch_of(hf_config)

    @hookimpl
    def specdec_method_traits(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> MethodTraits:
        """Return what the speculator reads, and what its drafts are."""
        from specdec_plugin_mlp_speculator.traits import traits_of

        return traits_of(config, cast("MlpSpeculatorOptions", options), draft, target)

    @hookimpl
    def specdec_method_defaults(
        self, method: str, options: MethodOptions, draft: DraftSource | None, target: TargetInfo
    ) -> Sequence[Default]:
        """Return k: the most nodes of a tree, or the number of heads."""
        from specdec_plugin_mlp_speculator.traits import defaults_of

        return defaults_of(cast("MlpSpeculatorOptions", options), draft, target)

    @hookimpl
    def specdec_check(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> Sequence[Problem]:
        """Return what is wrong with the checkpoint, the target and the options together."""
        from specdec_plugin_mlp_speculator.traits import problems_of

        return problems_of(config, cast("MlpSpeculatorOptions", options), draft, target)

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
        from specdec_plugin_mlp_speculator.building import make

        return make(config, cast("MlpSpeculatorOptions", options), draft, target, registry.kernels)


plugin = MlpSpeculatorPlugin()
