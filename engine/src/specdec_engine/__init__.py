"""The reference engine: Hugging Face models, speculative decoding by plugins."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from specdec_engine.async_llm import AsyncLLM as AsyncLLM
    from specdec_engine.hf_generate.generate import generate as generate
    from specdec_engine.llm import LLM as LLM
    from specdec_engine.outputs import CompletionOutput as CompletionOutput
    from specdec_engine.outputs import Logprob as Logprob
    from specdec_engine.outputs import RequestOutput as RequestOutput
    from specdec_engine.sampling_params import SamplingParams as SamplingParams
    from specdec_engine.sampling_params import StructuredOutputsParams as StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "generate",
]
_MODULES = {
    "AsyncLLM": "async_llm",
    "CompletionOutput": "outputs",
    "LLM": "llm",
    "Logprob": "outputs",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "sampling_params",
    "generate": "hf_generate.generate",
}


def __getattr__(name: str) -> Any:
    """Load the engine on first use, so that the command line's help does not pay for torch."""
    if name in _MODULES:
        return getattr(import_module(f"specdec_engine.{_MODULES[name]}"), name)
    message = f"module 'specdec_engine' has no attribute {name!r}"
    raise AttributeError(message)
