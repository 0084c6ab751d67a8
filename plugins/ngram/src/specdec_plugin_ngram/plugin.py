"""The hooks of `ngram` and `ngram_gpu`; imports neither numpy, numba, torch nor Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_core.markers import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions
    from specdec_core.context import MethodContext, ProposerBuild
    from specdec_core.protocols import Proposer
    from specdec_core.sources import Problem
    from specdec_plugin_ngram.options import NgramOptions


class NgramPlugin:
    """The methods of prompt lookup: `ngram` keeps an index on the CPU, `ngram_gpu` searches on the target's device."""

    @hookimpl
    def specdec_method_options(self) -> type[MethodOptions]:
        from specdec_plugin_ngram.options import NgramOptions

        return NgramOptions

    @hookimpl
    def specdec_check(self, ctx: MethodContext[NgramOptions]) -> Sequence[Problem]:
        from specdec_core.sources import Problem

        low, end = ctx.options.prompt_lookup_min, ctx.target.max_model_len
        if low < end:
            return []
        message = f"{low} ids can never occur twice within a max_model_len of {end}"
        return [Problem(key="prompt_lookup_min", message=message, next_step=f"give a prompt_lookup_min below {end}")]

    @hookimpl
    def specdec_make_proposer(self, ctx: MethodContext[NgramOptions], build: ProposerBuild) -> Proposer:
        if ctx.method == "ngram_gpu":
            from specdec_plugin_ngram.device_proposer import make_device_proposer

            return make_device_proposer(ctx.options, build)
        from specdec_plugin_ngram.proposer import NgramProposer

        return NgramProposer(ctx.options, build.target.info.vocab_size)


plugin = NgramPlugin()
