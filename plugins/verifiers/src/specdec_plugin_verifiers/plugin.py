"""Hooks of the verifiers; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_core import hookimpl

if TYPE_CHECKING:
    from specdec_core.config.speculative import MethodOptions, ResolvedConfig, SpeculativeConfig
    from specdec_core.protocols import Verifier
    from specdec_core.registry.kernels import Kernels
    from specdec_core.sources import Problem
    from specdec_core.traits import MethodTraits

LOSSY = ("fly", "synthetic", "typical")
CHAINS_ONLY = ("block", "fly", "synthetic")
KEY = "rejection_sample_method"


class VerifiersPlugin:
    """`coupled`, `standard` and `block`, which keep the target's distribution; `fly`, `synthetic` and `typical`."""

    @hookimpl
    def specdec_verifier_options(self, method: str) -> type[MethodOptions] | None:
        """Return the options of the lossy verifiers; the others have none."""
        from specdec_plugin_verifiers.options import FlyOptions, SyntheticOptions, TypicalOptions

        models: dict[str, type[MethodOptions]] = {
            "fly": FlyOptions,
            "synthetic": SyntheticOptions,
            "typical": TypicalOptions,
        }
        return models.get(method)

    @hookimpl
    def specdec_verifier_is_lossy(self, method: str) -> bool:
        """Return whether a verifier changes the target's distribution."""
        return method in LOSSY

    @hookimpl
    def specdec_verifier_emits_host_draws(self, method: str) -> bool:
        """Say that `coupled` only compares drafts with the host's draws."""
        return method == "coupled"

    @hookimpl
    def specdec_verifier_check(
        self, method: str, config: SpeculativeConfig, options: MethodOptions, traits: MethodTraits
    ) -> Sequence[Problem]:
        """Refuse trees, shared noise, and numbers that do not fit k, where the verifier has no use for them."""
        from specdec_core.sources import Problem
        from specdec_plugin_verifiers.options import FlyOptions, SyntheticOptions

        problems = []
        if traits.shape == "tree" and method in CHAINS_ONLY:
            message = f"{method!r} verifies chains, and the method drafts trees"
            fits = "'coupled' or 'standard'" if traits.law == "deterministic" or traits.shares_noise else "'standard'"
            problems.append(Problem(key=KEY, message=message, next_step=f"use {fits}, or a chain of drafts"))
        if method == "block" and traits.shares_noise:
            message = "'block' looks at drafts that are drawn again later, which must then be drawn from other noise"
            step = "use 'coupled' or 'standard', or let the method draw with noise of its own"
            problems.append(Problem(key=KEY, message=message, next_step=step))
        k = config.num_speculative_tokens
        if isinstance(options, FlyOptions | SyntheticOptions) and k is not None:
            try:
                options.fit(k)
            except ValueError as error:
                key, _, message = str(error).partition(" ")
                problems.append(Problem(key=key, message=message))
        return problems

    @hookimpl
    def specdec_make_verifier(
        self, method: str, config: ResolvedConfig, options: MethodOptions, kernels: Kernels
    ) -> Verifier:
        from specdec_plugin_verifiers.building import make

        return make(method, config.num_speculative_tokens, options, kernels)


plugin = VerifiersPlugin()
