"""Penalties, bans and processors: the inputs of docs/bug-reports.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from definition import spelled_out
from runs import ids_of, prompts, run, target

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Fixed, Garbage, Perfect, Soft, Stub
from specdec_testing.table import random_table, table_target
from specdec_testing.trees import GarbageTree

NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
VOCAB = 12
TABLE = random_table(VOCAB, seed=17)


def greedy(**values: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **values})


def test_a_frequency_penalty_has_its_effect_on_every_row_row_17() -> None:
    prompt, params = [9, 9, 9, 9], greedy(frequency_penalty=2.0, max_tokens=8)
    expected = spelled_out(TABLE, params, prompt, key=0)
    assert expected != spelled_out(TABLE, greedy(max_tokens=8), prompt, key=0)
    assert ids_of(run(table_target(TABLE), [prompt], params, Fixed([9, 9]))) == [[expected]]
    for model in (table_target(TABLE), target("llama")):
        plain = run(model, [prompt], params)
        spec = run(model, [prompt], params, Perfect.of_run([prompt], plain))
        assert ids_of(spec) == ids_of(plain)
        assert spec[0].metrics.accepted == spec[0].metrics.drafted > 0


def test_each_row_is_penalised_with_the_drafts_before_it_row_18() -> None:
    """A target that repeats itself, and drafts that do: from the second 9 on, its logit is divided again and again."""
    table = np.full((VOCAB, VOCAB), 0.02)
    table[:, 9] = 0.5
    table[:, 4] = 0.28
    table /= table.sum(axis=1, keepdims=True)
    params = greedy(repetition_penalty=1.5, frequency_penalty=0.4)
    expected = spelled_out(table, params, [1], key=0)
    assert expected[:3] != [9, 9, 9]
    for stub in (None, Fixed([9, 9, 9]), Fixed([4, 9, 9]), GarbageTree(VOCAB)):
        assert ids_of(run(table_target(table), [[1]], params, stub)) == [[expected]]


METHODS: dict[str, tuple[Stub | None, dict[str, Any] | None]] = {
    "plain": (None, None),
    "chains": (Garbage(VOCAB), None),
    "trees": (GarbageTree(VOCAB), None),
    "soft drafts": (Soft(random_table(VOCAB, seed=3), shared=True), None),
    "ngram": (None, NGRAM),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [{"presence_penalty": 1.0}, {"min_p": 0.1}])
def test_every_method_honours_what_one_of_them_dropped_row_19(values: dict[str, Any], method: str) -> None:
    stub, config = METHODS[method]
    for temperature in (0.0, 0.9):
        params = greedy(temperature=temperature, seed=19, **values)
        expected = spelled_out(TABLE, params, [1, 2, 1], key=19)
        assert ids_of(run(table_target(TABLE), [[1, 2, 1]], params, stub, config=config)) == [[expected]]
    with pytest.raises(RequestError, match=next(iter(values))):
        SamplingParams(**{name: "much" for name in values})


def test_no_end_of_text_comes_before_min_tokens_row_20() -> None:
    """After every id but the prompt's, the end of the text is most likely, and the drafter knows nothing else."""
    eos = 2
    table = random_table(VOCAB, seed=20)
    table[3:, eos] = 2.0
    table /= table.sum(axis=1, keepdims=True)
    model = table_target(table, eos_token_id=eos)
    params = greedy(min_tokens=5, ignore_eos=False)
    expected = spelled_out(table, params, [1], key=0)
    assert expected.index(eos) == len(expected) - 1 >= 5
    short = run(model, [[1]], greedy(ignore_eos=False))[0].outputs[0].token_ids
    assert len(short) < 5
    for stub in (None, Fixed([eos] * 3), Fixed([expected[1], eos, eos])):
        (result,) = run(model, [[1]], params, stub)
        assert (result.outputs[0].token_ids, result.outputs[0].finish_reason) == (expected, "stop")


def test_a_processor_sees_every_verified_row_and_its_ban_holds_row_21() -> None:
    seen: list[tuple[int, ...]] = []

    def no_sevens(output: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        seen.append(output)
        logits[7] = -torch.inf
        return logits

    table = random_table(VOCAB, seed=21)
    table[:, 7] = 3.0
    table /= table.sum(axis=1, keepdims=True)
    params = greedy(logits_processors=[no_sevens], temperature=0.8, seed=1)
    said = run(table_target(table), [[1]], params)[0].outputs[0].token_ids
    assert 7 not in said
    seen.clear()
    (spec,) = run(table_target(table), [[1]], params, Fixed([7, 7]), k=2)
    assert spec.outputs[0].token_ids == said
    assert len(seen) == 1 + spec.metrics.steps + spec.metrics.drafted
    rows = iter(seen)
    for length in range(20):  # the row of each newest id, and behind it those of its drafts
        assert next(rows) == tuple(said[:length])
        if 0 < length < 19:
            assert next(rows) == (*said[:length], 7)
            assert length == 18 or next(rows) == (*said[:length], 7, 7)


class Latched:
    """A budget that cannot be rolled back."""

    def __init__(self, left: int) -> None:
        self.left = left

    def fork(self) -> Latched:
        return Latched(self.left)

    def accept(self, token: int) -> None:
        self.left -= 1

    def apply(self, prefix: Any, logits: Any) -> Any:
        if self.left == 0:
            logits[torch.arange(len(logits)) != 50] = -torch.inf
        return logits


class Budget(Latched):
    """After a number of ids, id 50 is forced."""

    def fork(self) -> Budget:
        return Budget(self.left)

    def rollback(self, count: int) -> None:
        self.left += count


def test_what_drafts_cannot_be_verified_with_is_decoded_plainly_beside_the_others_row_22() -> None:
    model, texts = target("llama"), prompts((9, 20, 14))
    params = [greedy(), greedy(logits_processors=[Latched(6)], repetition_penalty=1.2), greedy(temperature=0.8, seed=2)]
    plain = run(model, texts, params)
    assert plain[1].outputs[0].token_ids[6] == 50
    spec = run(model, texts, params, Perfect.of_run(texts, plain))
    assert ids_of(spec) == ids_of(plain)
    assert [result.metrics.drafted > 0 for result in spec] == [True, False, True]
    assert [result.outputs[0].plain_reason is None for result in spec] == [True, False, True]
    assert "no rollback" in str(spec[1].outputs[0].plain_reason)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_budget_of_six_ids_makes_the_seventh_the_forced_one_row_23(temperature: float) -> None:
    model, texts = target("llama"), prompts((9, 20))
    params = greedy(logits_processors=[Budget(6)], temperature=temperature, seed=3, n=2)
    plain = run(model, texts, params)
    for stub in (None, Perfect.of_run(texts, plain), Garbage(128), Fixed([50, 50]), GarbageTree(128)):
        results = run(model, texts, params, stub, k=4)
        assert ids_of(results) == ids_of(plain)
        for sample in (ids for result in ids_of(results) for ids in result):
            assert sample.index(50) == 6 or sample[6] == 50
        if isinstance(stub, Perfect):
            assert sum(result.metrics.accepted for result in results) > 10


def test_a_lookup_drafts_nothing_that_the_request_forbids_row_24() -> None:
    """The last ids of the prompt were followed by 99 before, which must not be said."""
    prompt, params = [5, 6, 99, 7, 5, 6], greedy(bad_words=[[99]], max_tokens=12)
    model = target("llama")
    with torch.no_grad():  # 99 would be said all the time
        model.get_output_embeddings().weight[99] = 3 * model.get_output_embeddings().weight[6]
    assert 99 in run(model, [prompt], greedy(max_tokens=12))[0].outputs[0].token_ids
    config = {"speculative_config": NGRAM, "logprobs_mode": "processed_logprobs"}
    plain = run(model, [prompt], params)
    with LLM(hf_model=model, strict=True, **config) as llm:
        (spec,) = llm.generate([prompt], greedy(bad_words=[[99]], max_tokens=12, logprobs=3))
    assert [spec.outputs[0].token_ids] == ids_of(plain)[0]
    assert 99 not in spec.outputs[0].token_ids
    assert spec.metrics.proposed > spec.metrics.drafted, "the draft was cut before 99"
    values = [one.logprob for entry in spec.outputs[0].logprobs or () for one in entry.values()]
    assert values and not np.isnan(values).any()
