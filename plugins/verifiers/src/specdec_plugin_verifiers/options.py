"""The keys of the lossy verifiers in a speculative configuration, under vLLM's names; knows no verifier."""

from __future__ import annotations

import itertools
import math
from typing import Annotated

from pydantic import Field, model_validator

from specdec_core.config.speculative import MethodOptions

Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class SyntheticOptions(MethodOptions):
    """How many drafts are to be accepted: exactly one of the two is given."""

    synthetic_acceptance_rates: tuple[Rate, ...] | None = Field(
        None,
        description="Chance that the first i drafts are all accepted, one number for each i up to "
        "num_speculative_tokens, non-increasing, in 0..1.",
    )
    synthetic_acceptance_length: float | None = Field(
        None,
        ge=1,
        allow_inf_nan=False,
        description="Mean number of tokens that a step emits, from 1 to num_speculative_tokens + 1.",
    )

    @model_validator(mode="after")
    def _check(self) -> SyntheticOptions:
        """Refuse both or neither, and rates that grow."""
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if (rates is None) == (length is None):
            given = "neither" if rates is None else "both"
            message = (
                "give exactly one of synthetic_acceptance_rates and synthetic_acceptance_length, "
                f"{given} {'are' if rates is not None else 'is'} given"
            )
            raise ValueError(message)
        if rates is not None and any(after > before for before, after in itertools.pairwise(rates)):
            message = f"synthetic_acceptance_rates must not increase, got {list(rates)}"
            raise ValueError(message)
        return self

    def fit(self, k: int) -> None:
        """Raise ValueError, naming the key, for what does not fit k."""
        self.rates(k)

    def rates(self, k: int) -> tuple[float, ...]:
        """Return the chance that the first i of k drafts are all accepted, for i = 1..k.

        Raises ValueError, naming the key, for a number of rates or a length that does not fit k.
        """
        rates, length = self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if rates is not None:
            if len(rates) != k:
                message = f"synthetic_acceptance_rates has {len(rates)} numbers, expected num_speculative_tokens = {k}"
                raise ValueError(message)
            return rates
        if length is None or length > k + 1:
            message = f"synthetic_acceptance_length is {length}, expected 1..{k + 1} (num_speculative_tokens + 1)"
            raise ValueError(message)
        whole = math.floor(length - 1)
        return ((1.0,) * whole + (length - 1 - whole,) + (0.0,) * k)[:k]


class TypicalOptions(MethodOptions):
    """When a draft is likely enough: above min(posterior_threshold, posterior_alpha * exp(-entropy of the target))."""

    posterior_threshold: float = Field(
        0.09, ge=0, allow_inf_nan=False, description="A draft whose probability is above this is accepted."
    )
    posterior_alpha: float = Field(
        0.3,
        ge=0,
        allow_inf_nan=False,
        description="A draft whose probability is above this times exp(-entropy) is accepted: less is asked where the "
        "target is undecided.",
    )


class FlyOptions(MethodOptions):
    """When a rejection is overruled (arXiv:2511.22972): at an undecided place, before enough accepted drafts."""

    fly_window_size: int | None = Field(
        None,
        ge=1,
        strict=True,
        description="How many drafts after a rejected one must be accepted for it to be kept, below "
        "num_speculative_tokens; min(6, num_speculative_tokens - 1) if it is left out.",
    )
    fly_entropy_threshold: float = Field(
        0.3,
        ge=0,
        allow_inf_nan=False,
        description="A rejected draft is kept only where the entropy of the target, in nats, is at least this.",
    )
    fly_entropy_top_k: int = Field(
        3, ge=1, strict=True, description="Over how many of the target's largest probabilities that entropy is summed."
    )

    def fit(self, k: int) -> None:
        """Raise ValueError, naming the key, for what does not fit k."""
        self.window(k)

    def window(self, k: int) -> int:
        """Return the number of drafts that must be accepted after a rejected one.

        Raises ValueError, naming the key, where k drafts have no room for it.
        """
        if k < 2:
            message = (
                f"num_speculative_tokens is {k}, and 'fly' looks at the drafts after a rejected one: expected >= 2"
            )
            raise ValueError(message)
        if self.fly_window_size is None:
            return min(6, k - 1)
        if self.fly_window_size >= k:
            message = f"fly_window_size is {self.fly_window_size}, expected 1..{k - 1} (below num_speculative_tokens)"
            raise ValueError(message)
        return self.fly_window_size


def options_of(method: str) -> type[MethodOptions] | None:
    """Return the model of a lossy verifier's keys; the others have none."""
    models: dict[str, type[MethodOptions]] = {
        "fly": FlyOptions,
        "synthetic": SyntheticOptions,
        "typical": TypicalOptions,
    }
    return models.get(method)
