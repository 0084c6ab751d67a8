"""Building blocks of the engine's tests: prompts, targets with room for them, runs, and a controller that varies k."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specdec_core import hookimpl
from specdec_engine import LLM, SamplingParams
from specdec_plugin_verifiers.coupled import Coupled
from specdec_testing.stubs import Fixed, Garbage, Null, Perfect, Soft, Stub, stub_plugin
from specdec_testing.table import random_table
from specdec_testing.targets import tiny_target

VOCAB = 128
POSITIONS = {"gpt2": "n_positions"}
LENGTHS = (1, 300, 7, 33, 2, 120, 64, 17)


def target(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny target with room for prompts of 300 ids."""
    return tiny_target(family, dtype=dtype, **{POSITIONS.get(family, "max_position_embeddings"): 512})


def prompts(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[dict[str, list[int]]]:
    """Random prompts, every second one repeating a phrase so that lookups find something."""
    rng = np.random.default_rng(seed)
    texts = []
    for i, length in enumerate(lengths):
        ids = rng.integers(3, VOCAB, length)
        if i % 2:
            ids = np.resize(ids[: max(1, length // 5)], length)
        texts.append({"prompt_token_ids": ids.tolist()})
    return texts


def params(
    count: int = len(LENGTHS), temperature: float = 0.0, max_tokens: int = 20, **more: Any
) -> list[SamplingParams]:
    """One set a prompt, each with a seed of its own."""
    common = {"temperature": temperature, "max_tokens": max_tokens, "ignore_eos": True, **more}
    return [SamplingParams(seed=1000 + i, **common) for i in range(count)]


def ids_of(results: Sequence[Any]) -> list[list[list[int]]]:
    """Ids by prompt and sample."""
    return [[sample.token_ids for sample in result.outputs] for result in results]


def run(model: Any, texts: Any, sampling: Any, stub: Stub | None = None, k: int = 4, **llm: Any) -> list[Any]:
    """Generate on a model, with a stub proposer if one is given; errors of the proposer are raised."""
    config = llm.pop("config", None)
    plugins: dict[str, Any] = dict(llm.pop("plugins", {}))
    if stub is not None:
        plugins["stub"] = stub_plugin(stub)
        config = {"method": "stub", "num_speculative_tokens": k, **(config or {})}
    arguments = {"strict": True, **llm}
    with LLM(hf_model=model, speculative_config=config, plugins=plugins, **arguments) as engine:
        results = engine.generate(texts, sampling)
        engine._engine.target.arena.check_integrity([])
    return results


def stubs(texts: Sequence[Any], plain: Sequence[Any]) -> Mapping[str, Stub]:
    """The stubs that every host must survive with the plain output."""
    return {
        "perfect": Perfect.of_run(texts, plain),
        "garbage": Garbage(VOCAB),
        "null": Null(),
        "fixed": Fixed([5, 5, 6]),
        "soft": Soft(random_table(VOCAB, seed=3), shared=True),
    }


class VaryingController:
    """k by request and step: 4, 0, 4, 1, ... each request at its own place of the cycle."""

    CYCLE = (4, 0, 4, 1, 3, 0, 0, 2)

    def __init__(self) -> None:
        """Start every request at its own place."""
        self.step = 0
        self.given: set[int] = set()

    def limit(self, requests: Sequence[Any], k: Sequence[int]) -> list[int]:
        """Return the next number of each request's cycle."""
        self.step += 1
        wished = [self.CYCLE[(self.step + int(r.id.partition("-")[0])) % len(self.CYCLE)] for r in requests]
        limits = [min(a, b) for a, b in zip(k, wished, strict=True)]
        self.given.update(limits)
        return limits

    def observe(self, stats: Any) -> None:
        """Nothing to learn."""


def assert_grows(texts: Sequence[str]) -> None:
    for before, after in itertools.pairwise(texts):
        assert after.startswith(before), f"{before!r} was shown, and then {after!r}"


class ControllerPlugin:
    """Offers one controller object."""

    def __init__(self, controller: Any) -> None:
        """Keep the controller."""
        self.controller = controller

    @hookimpl
    def specdec_make_controller(self) -> Any:
        """Hand the controller out."""
        return self.controller


class CountingVerifier:
    """`coupled` that counts its calls; it is its own plugin."""

    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def specdec_make_verifier(self) -> CountingVerifier:
        return self

    def verify(self, draft: Any, logits: Any, noise: Any, target_draws: Any, greedy: Any) -> Any:
        self.calls += 1
        return Coupled().verify(draft, logits, noise, target_draws, greedy)
