"""Methods of the specdec registry inside vLLM; importing this package imports neither vLLM nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_vllm.version import __version__

if TYPE_CHECKING:
    from specdec_vllm.llm import LLM as LLM
    from specdec_vllm.proposer import Proposer as Proposer

__all__ = ["LLM", "Proposer", "__version__"]


def __getattr__(name: str) -> Any:
    """Load `Proposer` and `LLM` on first use: vLLM looks the proposer up here by its dotted path."""
    if name == "Proposer":
        from specdec_vllm.proposer import Proposer

        return Proposer
    if name == "LLM":
        from specdec_vllm.llm import LLM

        return LLM
    message = f"module 'specdec_vllm' has no attribute {name!r}"
    raise AttributeError(message)
