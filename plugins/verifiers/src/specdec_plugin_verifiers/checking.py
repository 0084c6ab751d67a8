"""What each verifier promises, and which drafts it cannot verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specdec_core.config.speculative import MethodOptions, SpeculativeConfig
from specdec_core.sources import Problem
from specdec_core.traits import MethodTraits
from specdec_plugin_verifiers.options import FlyOptions, SyntheticOptions

LOSSY: Final = ("fly", "synthetic", "typical")
CHAINS_ONLY: Final = ("block", "fly", "synthetic")
KEY: Final = "rejection_sample_method"


def is_lossy(method: str) -> bool:
    """Return whether a verifier changes the target's distribution."""
    return method in LOSSY


def emits_host_draws(method: str) -> bool:
    """Return whether a verifier only compares drafts with the host's draws."""
    return method == "coupled"


def problems_of(
    method: str, config: SpeculativeConfig, options: MethodOptions, traits: MethodTraits
) -> Sequence[Problem]:
    """Refuse trees, shared noise, and numbers that do not fit k, where the verifier has no use for them."""
    problems = []
    if traits.shape == "tree" and method in CHAINS_ONLY:
        message = f"{method!r} verifies chains, and the method drafts trees"
        fits = (
            "'coupled' or 'standard'"
            if traits.draft_distribution == "deterministic" or traits.shares_noise
            else "'standard'"
        )
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
