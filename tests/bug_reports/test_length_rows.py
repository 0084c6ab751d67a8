"""Lengths, docs/bug-reports.md: short drafters, empty drafts, full contexts, batches of drafts of several lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from runs import ids_of, params, prompts, run, target

from specdec_core.draft import BatchView
from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, Perfect, Stub, stub_plugin
from specdec_testing.table import table_target

GREEDY = {"temperature": 0.0, "ignore_eos": True}


class Counting(Perfect):
    """Knows the text, and notes at which positions it drafted."""

    def row(self, batch: BatchView, i: int) -> Any:
        row = list(super().row(batch, i))[: int(batch.max_draft[i])]
        start = len(batch.request(i).tokens)
        self.positions = [*getattr(self, "positions", []), *range(start, start + len(row))]
        return row


def test_a_drafter_with_a_short_context_stops_there_and_decoding_goes_on_rows_40_and_41(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, texts = target("llama"), prompts((40, 20))
    sampling = params(2, max_tokens=30)
    plain = run(model, texts, sampling)
    inner = Counting.of_run(texts, plain)
    stub = RecordingProposer("none", hidden=False, max_position=32, inner=inner)
    config = {"method": "stub", "num_speculative_tokens": 4}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        spec = llm.generate(texts, sampling)
        assert llm.get_metrics().failures == 0
    assert ids_of(spec) == ids_of(plain)
    assert max(inner.positions) == 31, "the last position below the limit is used, none beyond"
    assert (spec[0].metrics.drafted, spec[0].metrics.proposed) == (0, 0), "skipped steps count nothing"
    assert (spec[0].metrics.empty, spec[0].metrics.steps) == (0, 29), "nobody was asked"
    assert spec[1].metrics.accepted == spec[1].metrics.drafted > 0
    assert spec[1].metrics.acceptance_rate == 1.0
    assert sum("has reached position 32" in record.message for record in caplog.records) == 1, "said once"


@pytest.mark.parametrize("max_tokens", [None, 40])
def test_drafts_never_pass_the_context_row_42(max_tokens: int | None) -> None:
    model = target("llama")
    prompt = [5, 6, 7, 8] * 3
    sampling = SamplingParams(max_tokens=max_tokens, **GREEDY)
    plain = run(model, [prompt], sampling, max_model_len=16)
    assert (len(plain[0].outputs[0].token_ids), plain[0].outputs[0].finish_reason) == (4, "length")
    lookup = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    for stub, config in ((None, lookup), (Perfect.of_run([prompt], plain), None), (Garbage(128), None)):
        spec = run(model, [prompt], sampling, stub, k=8, config=config, max_model_len=16)
        assert ids_of(spec) == ids_of(plain)
        assert spec[0].outputs[0].finish_reason == "length"
        # n + k + 1 ids must fit: 13 are known at the first step, so that 2 drafts at most have a place.
        assert len(spec[0].metrics.drafted_per_pos) <= 2


def test_the_drafts_own_max_model_len_is_honoured_row_43() -> None:
    model = target("llama")
    texts = [{"prompt_token_ids": [5, 6, 7] * 7}, {"prompt_token_ids": [5, 6, 5]}]
    sampling = params(2, max_tokens=16)
    plain = run(model, texts, sampling)
    stub = Counting.of_run(texts, plain)
    spec = run(model, texts, sampling, stub, config={"max_model_len": 8})
    assert ids_of(spec) == ids_of(plain)
    assert max(stub.positions) == 7
    assert (spec[0].metrics.drafted, spec[1].metrics.drafted) == (0, 4)
    lookup = {"method": "ngram", "num_speculative_tokens": 4, "max_model_len": 8, "prompt_lookup_max": 1}
    assert run(model, texts[:1], sampling[:1], config=lookup)[0].metrics.drafted == 0


def test_many_sequences_with_long_drafts_are_cut_to_the_budget_and_not_refused_row_44() -> None:
    model, texts = target("llama"), prompts()
    sampling = params(len(texts))
    plain = run(model, texts, sampling)
    config = {"max_step_tokens": 11}
    stub = RecordingProposer("none", hidden=False, inner=Garbage(128))
    spec = run(model, texts, sampling, stub, k=16, config=config, max_num_seqs=256)
    assert ids_of(spec) == ids_of(plain)
    budgets = [sum(call.max_draft) for call in stub.calls_seen]
    assert max(budgets) == 11
    assert max(max(call.max_draft) - min(call.max_draft) for call in stub.calls_seen if len(call.max_draft) == 8) <= 1


class Delayed(Perfect):
    """Nothing for five steps, then three ids at a time."""

    def row(self, batch: BatchView, i: int) -> Any:
        return [] if self.calls <= 5 else list(super().row(batch, i))[:3]


def test_empty_drafts_are_plain_steps_row_46() -> None:
    # The model counts to seven and begins again: lookup finds nothing until it has seen an id twice.
    table = np.eye(7)[(np.arange(7) + 1) % 7]
    sampling = SamplingParams(temperature=0.0, max_tokens=20)
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 1}
    (result,) = run(table_target(table), [[0]], sampling, config=config)
    assert result.outputs[0].token_ids == [(1 + i) % 7 for i in range(20)]
    assert result.metrics.empty >= 5
    assert result.metrics.drafts == result.metrics.steps - result.metrics.empty - 1, "nothing is asked for the last id"
    assert result.metrics.accepted == result.metrics.drafted == 3 * result.metrics.drafts > 0
    model, texts = target("llama"), prompts((9,))
    plain = run(model, texts, params(1))
    stub = Delayed.of_run(texts, plain)
    spec = run(model, texts, params(1), stub, strict=True)
    assert ids_of(spec) == ids_of(plain)
    assert (spec[0].metrics.empty, spec[0].metrics.drafted_per_pos[0]) == (5, spec[0].metrics.drafts)


class LeastLikely(Stub):
    """Drafts ids that are never the target's."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def row(self, batch: BatchView, i: int) -> Any:
        ids = batch.request(i).tokens.tolist()
        with torch.inference_mode():
            worst = int(self.model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmin())
        return [worst] * 3


@pytest.mark.parametrize("rows", ["last", "all"])
def test_with_all_drafts_rejected_the_hidden_row_is_the_last_committed_ones_row_47(rows: Any) -> None:
    model, texts, sampling = target("llama"), prompts((9, 14)), params(2, max_tokens=12)
    stub = RecordingProposer(rows, inner=LeastLikely(target("llama")))
    results = run(model, texts, sampling, stub, k=3)
    assert all(result.metrics.drafted > 20 and result.metrics.accepted == 0 for result in results)
    assert stub.layout_problems() == []
    seen = 0
    for call in stub.calls_seen:
        assert call.rows is not None
        assert call.rows.hidden is not None
        for i, known in enumerate(call.tokens):
            (at,) = np.flatnonzero(call.rows.request == i)[-1:]
            assert int(call.rows.positions[at]) == len(known) - 2
            with torch.inference_mode():
                states = model(torch.tensor([known]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]
            torch.testing.assert_close(call.rows.hidden[at], states[len(known) - 2], atol=2e-4, rtol=2e-4)
            seen += 1
    assert seen > 20


def test_a_drafter_that_always_says_the_same_survives_to_the_end_of_the_context_row_48() -> None:
    model = target("llama")
    rng = np.random.default_rng(48)
    texts = [{"prompt_token_ids": rng.integers(3, 128, int(n)).tolist()} for n in rng.integers(1, 60, 16)]
    sampling = SamplingParams(max_tokens=None, **GREEDY)
    plain = run(model, texts, sampling, max_model_len=200)
    spec = run(model, texts, sampling, Fixed([87, 15, 28, 16]), max_model_len=200)
    assert ids_of(spec) == ids_of(plain)
    for text, result in zip(texts, spec, strict=True):
        assert len(text["prompt_token_ids"]) + len(result.outputs[0].token_ids) == 200
        assert result.outputs[0].finish_reason == "length"
