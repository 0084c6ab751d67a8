"""Caches, docs/bug-reports.md: nothing stale after rejection, abort, reuse or many requests in sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import ids_of, params, prompts, run, target

from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Perfect, stub_plugin

LOOKUP = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def test_closing_a_stream_near_its_end_leaves_a_clean_cache_row_52() -> None:
    model, texts = target("llama"), prompts((9, 30))
    for emitted in range(1, 7):
        sampling = params(2, max_tokens=6)
        plain = run(model, texts, sampling)
        config = {"method": "stub", "num_speculative_tokens": 4}
        perfect = Perfect.of_run(texts, plain)
        with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(perfect)}, strict=True) as llm:
            stream = llm.stream(texts, sampling)
            for _ in range(emitted):
                next(stream, None)
            stream.close()
            llm._engine.target.arena.check_integrity([])
            assert ids_of(llm.generate(texts, sampling)) == ids_of(plain)


def states_of(model: Any, ids: list[int]) -> tuple[Any, Any]:
    with torch.inference_mode():
        out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return out.hidden_states[-1][0], out.hidden_states[1][0]


def test_features_of_accepted_ids_come_from_the_target_row_54() -> None:
    model, texts, sampling = target("llama"), prompts((12, 30)), params(2)
    plain = run(model, texts, sampling)
    stub = RecordingProposer("all", aux_layers=(1,), inner=Perfect.of_run(texts, plain))
    spec = run(model, texts, sampling, stub, k=3)
    assert all(result.metrics.accepted == result.metrics.drafted > 10 for result in spec)
    blocks = 0
    for call in stub.calls_seen:
        assert call.rows is not None
        assert call.rows.hidden is not None
        assert call.rows.aux is not None
        for i, known in enumerate(call.tokens):
            mine = np.flatnonzero(call.rows.request == i)
            final, stream = states_of(model, known)
            at = call.rows.positions[mine].tolist()
            torch.testing.assert_close(call.rows.hidden[mine], final[at], atol=2e-4, rtol=2e-4)
            torch.testing.assert_close(call.rows.aux[mine, 0], stream[at], atol=2e-4, rtol=2e-4)
            blocks += call.newest_known[i] and len(at) == 4 and at[0] >= call.prompt_len[i]
    assert blocks > 4, "blocks of three accepted drafts were looked at"


def test_captured_states_are_those_of_solo_runs_both_times_row_55() -> None:
    model = target("llama")
    texts, sampling = prompts((3, 5)), params(2, max_tokens=1)

    def captured(llm: LLM, stub: RecordingProposer, some: slice) -> list[Any]:
        stub.calls_seen.clear()
        llm.generate(texts[some], [SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)] * len(texts[some]))
        hidden: dict[str, list[Any]] = {}
        for call in stub.calls_seen:
            assert call.rows is not None
            assert call.rows.hidden is not None
            for i, name in enumerate(call.request_ids):
                hidden.setdefault(name, []).append(call.rows.hidden[call.rows.request == i])
        return [torch.cat(parts) for parts in hidden.values()]

    stub = RecordingProposer("all")
    config = {"method": "stub", "num_speculative_tokens": 2}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        alone = [captured(llm, stub, slice(0, 1))[0], captured(llm, stub, slice(1, 2))[0]]
        for _ in range(2):
            together = captured(llm, stub, slice(0, 2))
            assert [len(states) for states in together] == [3, 5]
            for mine, solo in zip(together, alone, strict=True):
                torch.testing.assert_close(mine, solo, atol=1e-5, rtol=1e-5)
    assert len(sampling) == 2


def test_long_requests_one_after_the_other_leak_nothing_row_56() -> None:
    rng = np.random.default_rng(56)
    model = target("llama")
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    with LLM(hf_model=model, speculative_config=LOOKUP, kv_cache_tokens=512, strict=True) as llm:
        for _ in range(5):
            ids = np.resize(rng.integers(3, 128, 40), 200).tolist()
            (spec,) = llm.generate([ids], sampling)
            assert spec.metrics.drafted > 0
            assert llm._engine.scheduler.preemptions == 0
            llm._engine.target.arena.check_integrity([])
            assert llm._engine.runner is not None
            assert llm._engine.runner._proposer.memory_bytes() == 0  # type: ignore[attr-defined]
            assert ids_of([spec]) == ids_of(run(model, [ids], sampling))


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_a_second_turn_that_shares_a_beginning_says_what_a_cold_engine_says_row_57(family: str) -> None:
    model = target(family)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    first, second = [5, 6, 7, 8, 20, 21, 22], [5, 6, 7, 8, 90, 91]
    with LLM(hf_model=model, speculative_config=LOOKUP, strict=True) as warm:
        warm.generate([first], sampling)
        again = [warm.generate([ids], sampling)[0] for ids in (second, first, second)]
    cold = [run(model, [ids], sampling)[0] for ids in (second, first, second)]
    assert ids_of(again) == ids_of(cold)
