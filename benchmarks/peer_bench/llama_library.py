"""llama.cpp by llama-cpp-python, plain and with its own prompt lookup, one prompt at a time."""

from __future__ import annotations

from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from peer_bench.timed import Clock, Timed


class LlamaLibrary:
    """A context for each arm; the weights are one file in memory. `arms` gives the arguments of the lookup, or None."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Load the file."""
        self._stops = set(settings["stop_ids"])
        self._threads = settings["threads"]
        self._llamas = {
            arm: llama_cpp.Llama(
                settings["gguf"],
                n_ctx=settings["max_model_len"],
                n_threads=self._threads,
                n_threads_batch=self._threads,
                draft_model=None if lookup is None else LlamaPromptLookupDecoding(**lookup),
                logits_all=lookup is not None,  # without it a prompt beyond 512 ids raises where there is a draft model
                verbose=False,
            )
            for arm, lookup in settings["arms"].items()
        }

    def about(self) -> dict[str, Any]:
        """Return versions, threads, and what the library was compiled for."""
        return {
            "llama_cpp_python": llama_cpp.__version__,
            "threads": self._threads,
            "system_info": llama_cpp.llama_print_system_info().decode(),
        }

    def generate(self, arm: str, prompts: list[list[int]], max_tokens: int, *, keep: bool, space: str) -> Timed:
        """Answer one prompt; without `keep` nothing is left of the one before."""
        (ids,) = prompts
        llama = self._llamas[arm]
        if not keep:
            llama.reset()
        answer: list[int] = []
        clock = Clock()
        for token in llama.generate(ids, temp=0.0, repeat_penalty=1.0):
            answer.append(token)
            clock.have([len(answer)])
            if token in self._stops or len(answer) == max_tokens:
                break
        return clock.stop([answer])


def build(settings: dict[str, Any]) -> LlamaLibrary:
    """Return the library."""
    return LlamaLibrary(settings)
