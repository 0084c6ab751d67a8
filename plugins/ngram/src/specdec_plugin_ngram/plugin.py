"""The hooks of `ngram` and `ngram_gpu`; imports neither numpy, numba, torch nor Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from specdec_core.markers import hookimpl
from specdec_core.traits import MethodTraits

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig
    from specdec_core.protocols import Proposer
    from specdec_core.registry.loader import Registry
    from specdec_core.sources import Detection, DraftSource, Problem, TargetHandle, TargetInfo
    from specdec_plugin_ngram.options import NgramOptions


class NgramPlugin:
    """The methods of prompt lookup: `ngram` keeps an index on the CPU, `ngram_gpu` searches on the target's device."""

    @hookimpl
    def specdec_method_options(self, method: str) -> type[MethodOptions]:
        """Return the keys that both methods share."""
        from specdec_plugin_ngram.options import NgramOptions

        return NgramOptions

    @hookimpl
    def specdec_method_traits(self, method: str) -> MethodTraits:
        """Return traits of a chain drafter that needs ids and nothing else."""
        return MethodTraits(shape="chain", rows="none", law="deterministic", weights="none", when_off="catch_up")

    @hookimpl
    def specdec_detect_method(self, draft: DraftSource) -> Detection | None:
        """Claim no draft: prompt lookup has none."""
        return None

    @hookimpl
    def specdec_check(self, method: str, options: MethodOptions, target: TargetInfo) -> Sequence[Problem]:
        """Refuse a suffix that no context is long enough to repeat."""
        from specdec_core.sources import Problem

        low = cast("NgramOptions", options).prompt_lookup_min
        if low < target.max_model_len:
            return []
        message = f"{low} ids can never occur twice within a max_model_len of {target.max_model_len}"
        next_step = f"give a prompt_lookup_min below {target.max_model_len}"
        return [Problem(key="prompt_lookup_min", message=message, next_step=next_step)]

    @hookimpl
    def specdec_make_proposer(
        self,
        method: str,
        config: ResolvedConfig,
        options: MethodOptions,
        target: TargetHandle,
        registry: Registry,
    ) -> Proposer:
        """Build the proposer of either method."""
        chosen = cast("NgramOptions", options)
        if method == "ngram_gpu":
            from specdec_plugin_ngram.device_proposer import make_device_proposer

            return make_device_proposer(config, chosen, target, registry)
        from specdec_plugin_ngram.proposer import NgramProposer

        return NgramProposer(chosen, target.info.vocab_size)


plugin = NgramPlugin()
