"""Rows of docs/bug-reports.md about stop rules, budgets and lookup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import ids_of, run, target
from words import tiny_tokenizer

from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Fixed, Perfect
from specdec_testing.table import table_target
from specdec_testing.targets import tiny_target


def ngram(k: int, low: int = 1, high: int = 2, **more: Any) -> dict[str, Any]:
    config = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": low, "prompt_lookup_max": high}
    return {**config, **more}


def test_a_known_continuation_past_a_stop_text_ends_at_it_row_25() -> None:
    """The drafter has seen the text before, with all that came after the stop text."""
    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=None)
    prompts = [tokenizer(text)["input_ids"] for text in ("the cat", "a hat")]
    seen = run(model, prompts, SamplingParams(temperature=0.0, max_tokens=60), tokenizer=tokenizer)
    stops = [result.outputs[0].text[12:16] for result in seen]
    params = SamplingParams(temperature=0.0, max_tokens=60, stop=stops)
    plain = run(model, prompts, params, tokenizer=tokenizer)
    spec = run(model, prompts, params, Perfect.of_run(prompts, seen), k=40, tokenizer=tokenizer)
    for one, other, whole in zip(plain, spec, seen, strict=True):
        assert other.outputs[0] == one.outputs[0]
        assert (other.outputs[0].finish_reason, other.outputs[0].stop_reason in stops) == ("stop", True)
        assert len(other.outputs[0].token_ids) < len(whole.outputs[0].token_ids)
        assert not any(stop in other.outputs[0].text for stop in stops)
        assert other.metrics.accepted > other.metrics.accepted_kept


def test_lookup_runs_where_no_end_of_text_is_known_row_28() -> None:
    model = tiny_target("llama", eos_token_id=None)
    ids = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    params = SamplingParams(temperature=0.0, max_tokens=15)
    spec = run(model, [ids], params, config=ngram(3))
    assert len(spec[0].outputs[0].token_ids) == 15
    assert spec[0].metrics.drafted > 0
    assert ids_of(spec) == ids_of(run(model, [ids], params))


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_match_in_the_prompt_never_gives_more_than_max_tokens_row_29(max_tokens: int) -> None:
    # What follows in the prompt is what the model says, so that every draft would stand.
    table = np.eye(12)[(np.arange(12) + 1) % 12]
    prompt = [*range(12), *range(12), 0, 1]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    (result,) = run(table_target(table), [prompt], params, config=ngram(3))
    output = result.outputs[0]
    assert (output.token_ids, output.finish_reason) == ([2, 3, 4][:max_tokens], "length")
    # One id comes with the prompt's pass, the last one is never a draft.
    assert result.metrics.drafted == max(0, max_tokens - 2)
    assert result.metrics.accepted == result.metrics.drafted


def test_an_end_of_text_that_only_the_drafter_sees_ends_nothing_row_31() -> None:
    model = tiny_target("llama", eos_token_id=2)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    plain = run(model, [[5, 6, 7]], params)
    assert 2 not in plain[0].outputs[0].token_ids
    for ids in ([2], [2, 11, 2], [11, 2]):
        spec = run(model, [[5, 6, 7]], params, Fixed(ids))
        assert ids_of(spec) == ids_of(plain)
        assert (spec[0].outputs[0].finish_reason, len(spec[0].outputs[0].token_ids)) == ("length", 20)
        assert spec[0].metrics.drafted > 15


def test_a_prompt_that_repeats_its_end_of_text_goes_on_row_31() -> None:
    """Lookup copies an id that ends texts out of the prompt; only the target's own would end the answer."""
    model = tiny_target("llama", eos_token_id=2)
    prompt = [5, 2, 9, 5, 2, 9, 5, 2]
    params = SamplingParams(temperature=0.0, max_tokens=20)
    assert ids_of(run(model, [prompt], params, config=ngram(4))) == ids_of(run(model, [prompt], params))


@pytest.mark.parametrize("match", ["earliest", "latest"])
def test_the_answers_own_ids_are_searched_row_91(match: str) -> None:
    # The model counts to seven and begins again; nothing in the prompt repeats.
    table = np.eye(7)[(np.arange(7) + 1) % 7]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    with LLM(hf_model=table_target(table), speculative_config=ngram(4, match=match)) as llm:
        (result,) = llm.generate([[0]], params)
    assert result.outputs[0].token_ids == [(1 + i) % 7 for i in range(40)]
    assert result.metrics.accepted == result.metrics.drafted > 20


def test_lookup_says_how_little_it_found_row_97() -> None:
    rng = np.random.default_rng(97)
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    (result,) = run(target("llama"), [rng.permutation(np.arange(3, 128))[:40].tolist()], params, config=ngram(4, 4, 5))
    assert (result.metrics.drafted, result.metrics.acceptance_rate) == (0, None)
    assert (result.metrics.empty, result.metrics.steps) == (18, 19), "nothing is asked for the last id"
    assert result.metrics.tokens_per_step == 1.0
