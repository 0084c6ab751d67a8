"""Log-probabilities, as reported in docs/bug-reports.md: rows 32 to 34; the table is docs/bug-reports.md."""

from __future__ import annotations

from typing import Any

import pytest
from runs import ids_of, params, prompts, run, stubs, target

from specdec_engine import SamplingParams
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Garbage, Null, Perfect, Stub

VOCAB = 128


def same(found: Any, expected: Any) -> bool:
    """Entries agree in ids, ranks and log-probabilities."""
    if found is None or expected is None:
        return found is expected
    return list(found) == list(expected) and all(
        entry.rank == expected[token].rank and entry.logprob == pytest.approx(expected[token].logprob, abs=1e-5)
        for token, entry in found.items()
    )


def test_speculation_changes_no_log_probability_of_a_penalised_text_row_32() -> None:
    model, texts = target("llama"), prompts((12, 30))
    sampling = SamplingParams(temperature=0.0, logprobs=2, repetition_penalty=1.1, max_tokens=24, ignore_eos=True)
    plain = run(model, texts, sampling)
    for stub in stubs(texts, plain).values():
        spec = run(model, texts, sampling, stub, k=4)
        assert ids_of(spec) == ids_of(plain)
        for mine, theirs in zip(spec, plain, strict=True):
            entries = mine.outputs[0].logprobs
            assert len(entries) == 24
            assert all(map(same, entries, theirs.outputs[0].logprobs))
            assert all(any(logprob.logprob < -0.01 for logprob in entry.values()) for entry in entries)


def test_drafts_are_used_and_each_id_has_its_entry_row_33() -> None:
    model, texts = target("llama"), prompts((9,))
    (sampling,) = params(1, max_tokens=16, logprobs=1)
    plain = run(model, texts, [sampling])
    (spec,) = run(model, texts, [sampling], Perfect.of_run(texts, plain), k=4)
    output = spec.outputs[0]
    assert len(output.logprobs) == len(output.token_ids) == 16
    assert all(token in entry for token, entry in zip(output.token_ids, output.logprobs, strict=True))
    assert spec.metrics.accepted == spec.metrics.drafted > 8


def test_prompts_have_their_log_probabilities_in_chunks_beside_drafts_row_34() -> None:
    model, texts = target("llama"), prompts((3, 17, 40))
    sampling = params(3, max_tokens=12, prompt_logprobs=1)
    plain = run(model, texts, sampling)
    inner: list[Stub] = [Null(), Garbage(VOCAB), Perfect.of_run(texts, plain)]
    for stub in [None, *(RecordingProposer("all", aux_layers=(1,), inner=stub) for stub in inner)]:
        found = run(model, texts, sampling, stub, k=3, prefill_chunk_size=8)
        assert ids_of(found) == ids_of(plain)
        for mine, theirs, text in zip(found, plain, texts, strict=True):
            assert len(mine.prompt_logprobs) == len(text["prompt_token_ids"])
            assert all(map(same, mine.prompt_logprobs, theirs.prompt_logprobs))
