"""Builds a verifier by its name; only the module of that one is imported."""

from __future__ import annotations

from specdec_core.config.speculative import MethodOptions, ResolvedConfig
from specdec_core.protocols import Verifier
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.options import FlyOptions, SyntheticOptions, TypicalOptions


def make(method: str, config: ResolvedConfig, options: MethodOptions, kernels: Kernels) -> Verifier:
    """Return the verifier; `options` are those of the lossy ones."""
    k = config.num_speculative_tokens
    if isinstance(options, SyntheticOptions):
        from specdec_plugin_verifiers.synthetic import Synthetic

        return Synthetic(kernels, options.rates(k))
    if isinstance(options, FlyOptions):
        from specdec_plugin_verifiers.fly import Fly

        return Fly(kernels, options.window(k), options.fly_entropy_threshold, options.fly_entropy_top_k)
    if isinstance(options, TypicalOptions):
        from specdec_plugin_verifiers.typical import Typical

        return Typical(kernels, options.posterior_threshold, options.posterior_alpha)
    if method == "coupled":
        from specdec_plugin_verifiers.coupled import Coupled

        return Coupled(kernels)
    if method == "block":
        from specdec_plugin_verifiers.block import Block

        return Block(kernels)
    from specdec_plugin_verifiers.standard import Standard

    return Standard(kernels)
