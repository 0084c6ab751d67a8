"""The keys of `ngram` and `ngram_gpu` in a speculative configuration; knows no proposer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from specdec_core.config.speculative import MethodOptions

BOUNDS: Final = ("prompt_lookup_min", "prompt_lookup_max")
DEFAULT_N: Final = 5  # vLLM's, if neither bound is given


class NgramOptions(MethodOptions):
    """How long the looked-up suffix may be, and which of its occurrences is copied (vLLM 0.32's keys, plus `match`).

    A bound that is left out (or null) equals the other one; with neither, both are 5.
    """

    prompt_lookup_min: int = Field(
        DEFAULT_N, ge=1, description="Fewest last ids that must occur earlier; left out: the same as prompt_lookup_max."
    )
    prompt_lookup_max: int = Field(
        DEFAULT_N, ge=1, description="Most last ids looked up, longest first; left out: the same as prompt_lookup_min."
    )
    match: Literal["earliest", "latest"] = Field(
        "earliest",
        description="Which occurrence of the longest suffix is copied: the earliest (vLLM's first engine; leaves the "
        "most text to copy) or the latest (its second engine; closest in topic).",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_bounds(cls, values: Any) -> Any:
        """Give a bound that was left out the value of the other one, if that is a possible one."""
        if not isinstance(values, Mapping):
            return values
        given = {key: value for key, value in values.items() if value is not None or key not in BOUNDS}
        bounds = [given[key] for key in BOUNDS if key in given]
        if len(bounds) == 1 and type(bounds[0]) is int and bounds[0] >= 1:
            given |= dict.fromkeys(BOUNDS, bounds[0])
        return given

    @model_validator(mode="after")
    def _check_order(self) -> NgramOptions:
        """Refuse a range with nothing in it."""
        if self.prompt_lookup_min > self.prompt_lookup_max:
            message = (
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max is {self.prompt_lookup_max}; "
                "expected prompt_lookup_min <= prompt_lookup_max (leave one out to make both equal)"
            )
            raise ValueError(message)
        return self
