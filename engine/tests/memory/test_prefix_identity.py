"""With prefix reuse, what callers are told is what they are told without it, and no page of others is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from prefixes import VOCAB, engine, sharing, talk, told, watched
from runs import ids_of, params, target

from specdec_engine import SamplingParams
from specdec_testing.stubs import Garbage, Soft, Stub
from specdec_testing.table import random_table
from specdec_testing.trees import GarbageTree, RaggedTree

MODES = {"free-fp32": (torch.float32, None), "fixed-fp32": (torch.float32, 8), "fixed-bf16": (torch.bfloat16, 8)}
SLOW_MODE = pytest.param("fixed-fp32", marks=pytest.mark.slow)
LENGTHS = (120, 131, 40, 96)
SHARED = 70
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 5}
all_modes = pytest.mark.parametrize("mode", ["free-fp32", SLOW_MODE, "fixed-bf16"])


def setting(mode: str, family: str = "llama") -> tuple[Any, dict[str, Any]]:
    dtype, width = MODES[mode]
    return target(family, dtype), {"decode_width": width, "prefill_chunk_size": 32}


def mixed(count: int, **more: Any) -> list[SamplingParams]:
    """Greedy and sampled ones in turn."""
    pairs = zip(params(count, 0.0, **more), params(count, 0.8, **more), strict=True)
    return [pair[i % 2] for i, pair in enumerate(pairs)]


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
@all_modes
def test_a_conversation_reads_the_same_with_and_without_reuse(mode: str, family: str) -> None:
    """At a fixed width the very same log-probabilities, bit for bit."""
    model, llm = setting(mode, family)
    texts, sampling = sharing(LENGTHS, SHARED), mixed(len(LENGTHS), max_tokens=8, logprobs=2)
    with engine(model, reuse=False, **llm) as plain:
        expected = talk(plain, texts, sampling)
        assert plain.get_state().prefix_cache_hits == plain.get_state().kv_pages_published == 0
    stubs: list[tuple[Stub | None, Any]] = [(None, None), (Garbage(VOCAB), None), (GarbageTree(VOCAB), None)]
    stubs += [(RaggedTree(VOCAB), None), (Soft(random_table(VOCAB, seed=3), shared=True), None)]
    for stub, config in [*stubs, (None, NGRAM), (None, SUFFIX)]:
        with engine(model, stub, config=config, **llm) as reusing, watched(reusing) as watch:
            results = talk(reusing, texts, sampling)
            assert ids_of(results) == ids_of(expected)
            if mode.startswith("fixed"):
                assert told(results) == told(expected)
            assert reusing.get_state().prefix_cache_hits > 700 and watch.shared > 0


@all_modes
@pytest.mark.parametrize("chunk", [7, 50])
def test_chunks_that_do_not_end_with_pages_change_nothing(mode: str, chunk: int) -> None:
    model, llm = setting(mode)
    texts, sampling = sharing((300, 260, 40, 290), 250), mixed(4, max_tokens=6, logprobs=1)
    llm["prefill_chunk_size"] = chunk
    with engine(model, reuse=False, **llm) as plain:
        expected = talk(plain, texts, sampling)
    with engine(model, Garbage(VOCAB), **llm) as reusing, watched(reusing):
        results = talk(reusing, texts, sampling)
        hits = reusing.get_state().prefix_cache_hits
    assert ids_of(results) == ids_of(expected)
    if mode.startswith("fixed"):
        assert told(results) == told(expected)
    # The smallest common multiple of 32 and 7 is 224; that of 32 and 50, 800, is more than a prompt has.
    assert hits == 0 if mode.startswith("fixed") and chunk == 50 else hits > 700


@all_modes
def test_requests_that_are_preempted_take_over_what_is_left_and_read_the_same(mode: str) -> None:
    model, llm = setting(mode)
    texts, sampling = sharing((40, 75, 70, 90), 64), mixed(4, max_tokens=60)
    with engine(model, reuse=False, **llm) as plain:
        expected = plain.generate(texts, sampling)
    with engine(model, Garbage(VOCAB), kv_cache_tokens=288, **llm) as reusing, watched(reusing) as watch:
        assert ids_of(reusing.generate(texts, sampling)) == ids_of(expected)
        assert reusing._engine.scheduler.preemptions > 0
        assert any(start and text.startswith("3") for text, start, _ in watch.rows)
        reusing._engine.target.arena.check_integrity([])


@pytest.mark.parametrize("mode", ["free-fp32", "fixed-bf16"])
def test_after_aborts_anywhere_later_requests_read_the_same(mode: str) -> None:
    model, llm = setting(mode)
    texts, sampling = sharing((200, 180, 90), 80), mixed(3, max_tokens=20)
    with engine(model, reuse=False, **llm) as plain:
        expected = plain.generate(texts, sampling)
    with engine(model, Garbage(VOCAB), **llm) as reusing, watched(reusing):
        for steps in range(1, 9):
            with reusing.start(texts, sampling) as run:
                for _ in range(steps):
                    run.step()
            reusing._engine.target.arena.check_integrity([])
            assert reusing.get_state().kv_pages_in_use == 0
        assert ids_of(reusing.generate(texts, sampling)) == ids_of(expected)


@all_modes
def test_samples_and_neighbours_of_a_batch_share_and_read_the_same(mode: str) -> None:
    model, llm = setting(mode)
    texts = [*sharing((150, 150, 100), 96), *sharing((150,), 96)]
    sampling = params(4, 0.8, max_tokens=8, n=3, logprobs=1)
    with engine(model, reuse=False, **llm) as plain:
        expected = plain.generate(texts, sampling)
    for seqs in (64, 2):
        with engine(model, Garbage(VOCAB), max_num_seqs=seqs, **llm) as reusing, watched(reusing):
            results = reusing.generate(texts, sampling)
            assert ids_of(results) == ids_of(expected)
            if mode.startswith("fixed"):
                assert told(results) == told(expected)
