"""The hooks of `medusa`; imports neither pydantic nor torch."""

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
    from specdec_plugin_medusa.options import MedusaOptions


class MedusaPlugin:
    """Medusa heads of both generations of files, alone or inside the target's checkpoint; chains and static trees."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the keys of the method."""
        from specdec_plugin_medusa.options import MedusaOptions

        return MedusaOptions

    @hookimpl
    def specdec_default_model(self, method: str, target: TargetInfo) -> Default | None:
        """Return the target's own checkpoint if the heads are in it."""
        from specdec_plugin_medusa.detection import default_model_of

        return default_model_of(target)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim checkpoints that say so, or that have the tensors."""
        from specdec_plugin_medusa.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_override_hf_config(
        self, method: str, hf_config: Mapping[str, Any], target: TargetInfo
    ) -> Mapping[str, Any] | None:
        """Turn the configuration of either generation into vLLM's."""
        from specdec_plugin_medusa.settings import patch_of

        return patch_of(hf_config, target)

    @hookimpl
    def specdec_method_traits(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> MethodTraits:
        """Return what the heads read, and what their drafts are."""
        from specdec_plugin_medusa.traits import traits_of

        return traits_of(config, cast("MedusaOptions", options), draft, target)

    @hookimpl
    def specdec_method_defaults(
        self, method: str, options: MethodOptions, draft: DraftSource | None, target: TargetInfo
    ) -> Sequence[Default]:
        """Return k: the nodes of a tree, or the number of heads."""
        from specdec_plugin_medusa.traits import defaults_of

        return defaults_of(cast("MedusaOptions", options), draft, target)

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
        from specdec_plugin_medusa.traits import problems_of

        return problems_of(config, cast("MedusaOptions", options), draft, target)

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
        from specdec_plugin_medusa.building import make

        return make(config, cast("MedusaOptions", options), draft, target, registry.kernels)


plugin = MedusaPlugin()
