"""Structured output: the inputs of docs/bug-reports.md, on an automaton over ids and real matchers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import ids_of, run
from words import lettered_tokenizer

from specdec_engine import SamplingParams
from specdec_engine.sampling_params import StructuredOutputsParams
from specdec_testing.stubs import Fixed, Garbage, Perfect, Stub
from specdec_testing.table import table_target
from specdec_testing.targets import tiny_target

VOCAB, EOS = 128, 2
TOKENIZER = lettered_tokenizer(VOCAB, EOS)
TEXT = [TOKENIZER.decode([i]) for i in range(VOCAB)]
AUTOMATON: dict[str, Any] = {"choice": [TEXT[10] + TEXT[11], TEXT[10] + TEXT[12]]}
PROMPTS = [[5, 6, 7], [20, 21], [30] * 9]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_target("llama", vocab_size=VOCAB, eos_token_id=EOS)


def asked(temperature: float = 0.0, max_tokens: int = 20, **form: Any) -> SamplingParams:
    form = StructuredOutputsParams(**form) if form else StructuredOutputsParams(**AUTOMATON)
    return SamplingParams(temperature=temperature, seed=1, max_tokens=max_tokens, structured_outputs=form)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_is_cut_at_the_first_id_that_the_form_forbids_row_35(
    model: Any, temperature: float, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = run(model, PROMPTS, asked(temperature), tokenizer=TOKENIZER)
    assert all(ids[0][0] == 10 and ids[0][1] in (11, 12) and ids[0][2:] == [EOS] for ids in ids_of(plain))
    for drafts, drafted in (([11, 99, 11], 1), ([99, 11], 0), ([12, EOS], 2)):
        spec = run(model, PROMPTS, asked(temperature), Fixed(drafts), k=3, tokenizer=TOKENIZER)
        assert ids_of(spec) == ids_of(plain)
        first = spec[0].metrics
        assert (first.proposed >= len(drafts), first.drafted_per_pos[: drafted + 1]) == (True, [1] * drafted)
        assert first.cut == first.proposed - first.drafted
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_nothing_is_fed_to_a_matcher_after_its_end_row_36(
    model: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = run(model, PROMPTS, asked(), tokenizer=TOKENIZER)
    for drafts in ([11, EOS, 10], [12, EOS, EOS], [EOS, 11]):
        spec = run(model, PROMPTS, asked(), Fixed(drafts), k=3, tokenizer=TOKENIZER)
        assert ids_of(spec) == ids_of(plain)
        assert all(result.outputs[0].finish_reason == "stop" for result in spec)
        assert all(result.metrics.drafted <= 2 for result in spec), "what stands behind the end is never run"
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_a_form_that_starts_inside_a_draft_holds_from_the_next_place_row_37() -> None:
    table = np.full((VOCAB, VOCAB), 1e-4)
    table[5, 7] = table[7, 60] = table[60, 99] = table[99, 98] = 1.0  # 99 after 60, if nothing forbids it
    model = table_target(table / table.sum(axis=1, keepdims=True), eos_token_id=EOS)
    late = asked(start_after=60, **AUTOMATON)
    plain = run(model, [[5]], late, tokenizer=TOKENIZER)
    ids = ids_of(plain)[0][0]
    assert (ids[:3], ids[3] in (11, 12), ids[4:]) == ([7, 60, 10], True, [EOS])
    free = run(model, [[5]], SamplingParams(temperature=0.0, max_tokens=3), tokenizer=TOKENIZER)
    assert ids_of(free) == [[[7, 60, 99]]]
    for drafts, accepted in (([60, 99], 1), ([60, 10, 99], 2), ([60], 1), ([60, ids[2], ids[3], EOS], 4)):
        spec = run(model, [[5]], late, Fixed(drafts), k=4, tokenizer=TOKENIZER)
        assert ids_of(spec) == ids_of(plain), drafts
        assert spec[0].metrics.accepted == accepted
    text = asked(start_after=TEXT[7] + TEXT[60], **AUTOMATON)
    assert ids_of(run(model, [[5]], text, Fixed([60, 99]), tokenizer=TOKENIZER)) == ids_of(plain)


def test_drafts_made_before_a_preemption_never_meet_the_matcher_row_38(model: Any) -> None:
    form = {
        "regex": f"([{TEXT[40]}-{TEXT[44]}]{{7}}[{TEXT[70]}{TEXT[71]}]{{4}}){{20,}}"
    }  # each place has its own state
    prompts = [list(range(10 + i, 40 + i)) for i in range(4)]
    chosen = asked(0.8, max_tokens=60, **form)
    plain = run(model, prompts, chosen, tokenizer=TOKENIZER)
    stubs: list[Stub] = [Perfect.of_run(prompts, plain), Garbage(VOCAB), Fixed([41, 70, 42, 99])]
    for stub in stubs:
        spec = run(model, prompts, chosen, stub, tokenizer=TOKENIZER, kv_cache_tokens=224)
        assert "preempted" in {reason for _, reason in stub.finished}
        assert ids_of(spec) == ids_of(plain)


def test_a_form_that_ends_inside_an_accepted_block_ends_the_text_there_row_39(model: Any) -> None:
    plain = run(model, PROMPTS, asked(), tokenizer=TOKENIZER)
    outputs = {tuple(p): [*ids[0], 10, 11] for p, ids in zip(PROMPTS, ids_of(plain), strict=True)}
    spec = run(model, PROMPTS, asked(), Perfect(outputs), k=4, tokenizer=TOKENIZER)
    assert ids_of(spec) == ids_of(plain)
    for result in spec:
        assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason) == ("stop", None)
        assert (result.metrics.steps, result.metrics.accepted, result.metrics.emitted) == (1, 2, 2)
