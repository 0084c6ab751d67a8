"""The reference engine, plain and with methods, on one model; and the forward of its target."""

from __future__ import annotations

import os
from typing import Any

import torch

import specdec_engine
from peer_bench.timed import Clock, Timed
from specdec_engine import LLM, SamplingParams
from specdec_engine.tune.forwards import ForwardTimer


class SpecdecLibrary:
    """An engine for each arm, on the weights of the first, which decodes plainly.

    `arms` gives the speculative configuration of each arm, None for plain decoding; `remembers` names the arms whose
    requests share answers within a namespace.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        """Load the model once."""
        torch.set_num_threads(settings["threads"])
        self._remembers = set(settings["remembers"])
        self._llms: dict[str, LLM] = {}
        first: LLM | None = None
        for arm, config in settings["arms"].items():
            more = {} if first is None else {"hf_model": first.model, "tokenizer": first.tokenizer}
            llm = LLM(
                settings["model"],
                config,
                max_model_len=settings["max_model_len"],
                max_num_seqs=settings["together"],
                kv_cache_tokens=settings["together"] * settings["max_model_len"],
                disable_log_stats=True,
                **more,
            )
            first = first or llm
            self._llms[arm] = llm

    def about(self) -> dict[str, Any]:
        """Return versions, threads, and what the kernels are compiled for."""
        import numba

        from specdec_nn.ops.cpu.choice import CHOSEN

        plain = next(iter(self._llms.values()))
        return {
            "specdec_engine": specdec_engine.__version__,
            "torch": torch.__version__,
            "numba": numba.__version__,
            "threads": torch.get_num_threads(),
            "kernels_compiled_for": CHOSEN,
            "SPECDEC_CPU": os.environ.get("SPECDEC_CPU"),
            "fused": plain._engine.target.flat.fused is not None,
        }

    def generate(self, arm: str, prompts: list[list[int]], max_tokens: int, *, keep: bool, space: str) -> Timed:
        """Answer prompts; without `keep` the arena is a new one, in which no earlier prompt is left."""
        llm = self._llms[arm]
        if not keep:
            tokens = llm.kv_cache_tokens
            llm.pause()
            llm.resume(tokens)
        extra = {"specdec": {"namespace": space}} if arm in self._remembers else None
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, extra_args=extra)
        clock = Clock()
        with llm.start([{"prompt_token_ids": ids} for ids in prompts], params) as run:
            while not run.finished:
                run.step()
                if not clock.timed.first_tokens:
                    clock.have([group.emitted for group in run.groups])
            return clock.stop([list(output.outputs[0].token_ids) for output in run.outputs()])

    def forwards(self, rows: list[int], context: int, turns: int) -> dict[int, list[float]]:
        """Time forwards of the plain arm's target."""
        plain = next(iter(self._llms.values()))
        found: dict[int, list[float]] = {count: [] for count in rows}
        with ForwardTimer(plain, 1, context, max(rows)) as timer:
            for turn in range(turns + 1):
                for count in rows:
                    seconds = timer.seconds([count])
                    if turn:  # the first turn warms up
                        found[count].append(seconds)
        return found


def build(settings: dict[str, Any]) -> SpecdecLibrary:
    """Return the library."""
    return SpecdecLibrary(settings)
