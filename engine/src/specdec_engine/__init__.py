"""The reference engine: Hugging Face models, speculative decoding by plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from specdec_engine.llm import LLM as LLM
    from specdec_engine.sampling_params import SamplingParams as SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the engine on first use, so that the command line's help does not pay for torch."""
    if name == "LLM":
        from specdec_engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from specdec_engine.sampling_params import SamplingParams

        return SamplingParams
    message = f"module 'specdec_engine' has no attribute {name!r}"
    raise AttributeError(message)
