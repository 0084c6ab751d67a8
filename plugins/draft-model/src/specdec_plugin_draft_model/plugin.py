"""The hooks of `draft_model`; imports neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import Detection, DraftSource, Problem, TargetHandle, TargetInfo
    from specdec_core.traits import MethodTraits
    from specdec_plugin_draft_model.options import DraftModelOptions


class DraftModelPlugin:
    """A causal language model as the drafter of a larger one."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the method's keys."""
        from specdec_plugin_draft_model.options import DraftModelOptions

        return DraftModelOptions

    @hookimpl
    def specdec_method_traits(
        self, config: SpeculativeConfig, options: MethodOptions, draft: DraftSource | None
    ) -> MethodTraits:
        """Return what the drafter needs, and what its drafts are."""
        from specdec_plugin_draft_model.traits import traits_of

        return traits_of(config, cast("DraftModelOptions", options), draft)

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim whole language models."""
        from specdec_plugin_draft_model.detection import detect

        return detect(draft)

    @hookimpl
    def specdec_check(
        self, config: SpeculativeConfig, options: MethodOptions, draft: DraftSource | None, target: TargetInfo
    ) -> Sequence[Problem]:
        """Return what is wrong with the checkpoint, the target and the options together."""
        from specdec_plugin_draft_model.traits import problems_of

        return problems_of(config, cast("DraftModelOptions", options), draft, target)

    @hookimpl
    def specdec_make_proposer(
        self,
        config: ResolvedConfig,
        options: MethodOptions,
        draft: DraftSource,
        target: TargetHandle,
        registry: Registry,
    ) -> Proposer:
        """Load the model and build the drafter."""
        from specdec_plugin_draft_model.building import make

        return make(config, cast("DraftModelOptions", options), draft, target, registry.kernels)

    @hookimpl(optionalhook=True)
    def specdec_vllm_config(
        self, method: str, config: SpeculativeConfig, options: MethodOptions, draft: DraftSource | None
    ) -> Mapping[str, Any] | Problem | None:
        """Return the keys with which vLLM runs the draft model by itself."""
        from specdec_plugin_draft_model.vllm_keys import vllm_config

        return vllm_config(method, config, cast("DraftModelOptions", options), draft)


plugin = DraftModelPlugin()
