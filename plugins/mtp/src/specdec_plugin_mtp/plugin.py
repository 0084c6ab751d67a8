"""The hooks of `mtp`; imports neither pydantic nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import Default, Detection, DraftSource, Problem, TargetHandle, TargetInfo, TargetSwap
    from specdec_core.traits import MethodTraits
    from specdec_plugin_mtp.options import MtpOptions


class MtpPlugin:
    """Multi-token-prediction modules inside the target's own checkpoint, of every family in `families`."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the keys of the method."""
        from specdec_plugin_mtp.options import MtpOptions

        return MtpOptions

    @hookimpl
    def specdec_default_model(self, method: str, target: TargetInfo) -> Default | None:
        """Return the target's own checkpoint, which is where the modules are."""
        from specdec_plugin_mtp.traits import default_model_of

        return default_model_of(target)

    @hookimpl
    def specdec_load_target_as(self, method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the keys of a target that is made like one of a known type."""
        from specdec_plugin_mtp.overriding import family_of

        family = family_of(hf_config)
        return None if family is None else family.loads_as or None

    @hookimpl
    def specdec_override_hf_config(self, method: str, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Turn the configuration of a model into that of its MTP modules."""
        from specdec_plugin_mtp.overriding import patch_of

        return patch_of(hf_config)

    @hookimpl
    def specdec_method_defaults(
        self, method: str, options: MethodOptions, draft: DraftSource | None
    ) -> Sequence[Default]:
        """Return k: the number of modules."""
        from specdec_plugin_mtp.traits import defaults_of

        return defaults_of(draft)

    @hookimpl
    def specdec_method_traits(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> MethodTraits:
        """Return what the modules read, and what their drafts are."""
        from specdec_plugin_mtp.traits import traits_of

        return traits_of(config, draft, target)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim checkpoints that carry the modules of their family."""
        from specdec_plugin_mtp.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_swap_target(self, source: DraftSource) -> TargetSwap | None:
        """Turn a speculators file given as the model into its target and itself as the draft."""
        from specdec_plugin_mtp.detection import swap

        return swap(source)

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
        from specdec_plugin_mtp.checking import problems_of

        return problems_of(cast("MtpOptions", options), draft, target)

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
        from specdec_plugin_mtp.building import make

        return make(config, cast("MtpOptions", options), draft, target, registry.kernels)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(
        self,
        method: str,
        config: SpeculativeConfig,
        options: MethodOptions,
        draft: DraftSource | None,
        target: TargetInfo,
    ) -> Mapping[str, Any] | Problem | None:
        """Return the keys with which vLLM runs the modules by itself."""
        from specdec_plugin_mtp.vllm_keys import vllm_config

        return vllm_config(method, config, cast("MtpOptions", options), draft, target)


mtp = MtpPlugin()
