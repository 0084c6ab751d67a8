"""Every parameter that changes logits: it does what it means, at every row with its own prefix, whatever the drafts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from definition import EOS, spelled_out
from runs import ids_of, run

from specdec_core.draft import IntArray
from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_testing.stubs import Fixed, Garbage, Null, Perfect, Stub
from specdec_testing.table import random_table, table_target
from specdec_testing.trees import GarbageTree, PerfectTree

VOCAB = 12
TABLE = random_table(VOCAB, seed=5)
MODEL = table_target(TABLE, eos_token_id=EOS)


def no_nines(output: Any, logits: Any) -> Any:
    logits[9] = -torch.inf
    return logits


def rather_new(prompt: Any, output: Any, logits: Any) -> Any:
    """Makes the last id of the output less likely, the first id of the prompt more so, and returns another tensor."""
    changed = logits.clone()
    changed[prompt[0]] += 1.5
    if output:
        changed[output[-1]] -= 2.0
    return changed


class LongerThanFive:
    """From the 6th id of prompt and output on, id 9 becomes likely."""

    def apply(self, prefix: Any, logits: Any) -> Any:
        if len(prefix) > 5:
            logits[9] += 1.0
        return logits


class ThreeThenFour:
    """Has a state: after three ids of 6 or above, id 4 is forced once and counting begins anew."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def fork(self) -> ThreeThenFour:
        copy = ThreeThenFour()
        copy.said = list(self.said)
        return copy

    def accept(self, token: int) -> None:
        self.said.append(token)

    def rollback(self, count: int) -> None:
        del self.said[len(self.said) - count :]

    @staticmethod
    def due(said: list[int]) -> bool:
        large = 0
        for token in said:
            large = 0 if large >= 3 else large + (token >= 6)
        return large >= 3

    def apply(self, prefix: Any, logits: Any) -> Any:
        assert self.said == prefix.tolist()[len(prefix) - len(self.said) :], "state and prefix agree"
        if self.due(self.said):
            logits[torch.arange(len(logits)) != 4] = -torch.inf
        return logits


def on_lists(prompt: list[int], output: list[int], y: list[float], names: tuple[str, ...]) -> list[float]:
    """The processors above, written for lists."""
    y = list(y)
    for name in names:
        if name == "no_nines":
            y[9] = -np.inf
        elif name == "rather_new":
            y[prompt[0]] += 1.5
            if output:
                y[output[-1]] -= 2.0
        elif name == "longer":
            y[9] += 1.0 if len(prompt) + len(output) > 5 else 0.0
        elif ThreeThenFour.due(output):
            y = [value if token == 4 else -np.inf for token, value in enumerate(y)]
    return y


PROCESSORS: dict[str, Any] = {
    "no_nines": no_nines,
    "rather_new": rather_new,
    "longer": LongerThanFive(),
    "state": ThreeThenFour(),
}
ALONE: dict[str, dict[str, Any]] = {
    "presence_penalty": {"presence_penalty": 1.5},
    "negative presence_penalty": {"presence_penalty": -1.9},
    "frequency_penalty": {"frequency_penalty": 0.8},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition_penalty below 1": {"repetition_penalty": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "logit_bias": {"logit_bias": {3: 2.5, 5: -1e9, 8: 1.25}},
    "allowed_token_ids": {"allowed_token_ids": [1, 4, 7, 9, 11]},
    "min_tokens": {"min_tokens": 17, "ignore_eos": False, "stop_token_ids": [1, 5, 6]},
    "min_tokens and ignore_eos": {"min_tokens": 11, "stop_token_ids": [5, 7]},
    "bad_words": {"bad_words": [[3], [1, 1], [6, 5], [10, 0], [9, 1, 6], [5, 9, 2]]},
    "function of the output": {"logits_processors": ["no_nines"]},
    "function of prompt and output": {"logits_processors": ["rather_new"]},
    "object": {"logits_processors": ["longer"]},
    "object with a state": {"logits_processors": ["state"]},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "penalties, bad_words": {"frequency_penalty": 1.0, "repetition_penalty": 1.3, "bad_words": [[4], [6, 1], [1, 6]]},
    "penalties, logit_bias": {"presence_penalty": 2.0, "repetition_penalty": 1.9, "logit_bias": {6: 5.0, 1: 4.0}},
    "min_tokens, allowed_token_ids": {
        "min_tokens": 9,
        "ignore_eos": False,
        "allowed_token_ids": [EOS, 6, 8],
        "frequency_penalty": 0.5,
    },
    "logit_bias, top_k": {"logit_bias": {2: 3.0, 7: 3.0, 0: -100}, "top_k": 2},
    "processors, temperature": {"logits_processors": ["rather_new", "longer", "state"]},
    "allowed_token_ids, min_p": {"allowed_token_ids": list(range(0, 12, 2)), "min_p": 0.25},
    "all truncations": {"min_p": 0.05, "top_k": 6, "top_p": 0.8},
    "processors, penalties": {"logits_processors": ["no_nines"], "presence_penalty": 1.2, "bad_words": [[6, 4]]},
}
CASES = {**ALONE, **TOGETHER}
PROMPTS = [[1 + i % 11, 3, 6, (5 * i) % 12][: 1 + i % 4] for i in range(len(CASES))]


def params(values: dict[str, Any], index: int, temperature: float, **more: Any) -> SamplingParams:
    common = {"temperature": temperature, "seed": 500 + index, "max_tokens": 40, "ignore_eos": True}
    made = {**common, **values, **more}
    if "logits_processors" in made:
        made["logits_processors"] = [PROCESSORS[name] for name in made["logits_processors"]]
    return SamplingParams(**made)


def batch(temperature: float) -> list[SamplingParams]:
    """One request for each case, all of which run side by side."""
    return [params(values, i, temperature) for i, values in enumerate(CASES.values())]


@pytest.fixture(scope="module")
def plain() -> dict[float, Any]:
    return {temperature: run(MODEL, PROMPTS, batch(temperature)) for temperature in (0.0, 0.7)}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("case", CASES)
def test_plain_decoding_is_the_definition(case: str, temperature: float, plain: dict[float, Any]) -> None:
    index = list(CASES).index(case)
    wanted, prompt = batch(temperature)[index], PROMPTS[index]
    names = tuple(CASES[case].get("logits_processors", ()))
    edit = (lambda p, o, y: on_lists(p, o, y, names)) if names else None
    expected = spelled_out(TABLE, wanted, prompt, key=500 + index, edit=edit)
    assert plain[temperature][index].outputs[0].token_ids == expected
    if temperature == 0.0 and set(CASES[case]) <= {"top_k", "top_p", "min_p"}:
        return
    without = params({k: v for k, v in CASES[case].items() if k == "ignore_eos"}, index, temperature)
    assert spelled_out(TABLE, without, prompt, key=500 + index) != expected, "the case shows what the parameter does"


def stubs(results: Any) -> dict[str, Stub]:
    return {
        "perfect": Perfect.of_run(PROMPTS, results),
        "garbage": Garbage(VOCAB, seed=1),
        "fixed": Fixed([6, 6, EOS, 7]),
        "null": Null(),
        "perfect tree": PerfectTree.of_run(PROMPTS, results, VOCAB),
        "garbage tree": GarbageTree(VOCAB),
    }


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_whatever_the_drafts_the_tokens_are_those_of_plain_decoding(
    temperature: float, plain: dict[float, Any]
) -> None:
    for name, stub in stubs(plain[temperature]).items():
        spec = run(MODEL, PROMPTS, batch(temperature), stub, k=5)
        for case, a, b in zip(CASES, ids_of(spec), ids_of(plain[temperature]), strict=True):
            assert a == b, (name, case)
        if name == "perfect":
            assert sum(r.metrics.accepted for r in spec) == sum(r.metrics.drafted for r in spec) > 100


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_chunks_preemption_and_a_fixed_width_change_nothing(temperature: float, plain: dict[float, Any]) -> None:
    expected = ids_of(plain[temperature])
    perfect = Perfect.of_run(PROMPTS, plain[temperature])
    for llm in ({"decode_width": 3}, {"max_num_seqs": 2}, {"prefill_chunk_size": 2}, {"kv_cache_tokens": 192}):
        assert ids_of(run(MODEL, PROMPTS, batch(temperature), perfect, **llm)) == expected, llm
    assert any(reason == "preempted" for _, reason in perfect.finished)


NEED_THE_PATH = (
    "frequency_penalty",
    "repetition_penalty",
    "bad_words",
    "min_tokens",
    "function of prompt and output",
    "object with a state",
)


@pytest.mark.parametrize("case", NEED_THE_PATH)
def test_these_checks_see_rows_processed_without_the_drafts_before_them(
    case: str, plain: dict[float, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScheduledRows, "path", lambda self, row: np.empty(0, np.int32))
    index = list(CASES).index(case)
    part = slice(index, index + 1)
    stub = Perfect.of_run(PROMPTS, plain[0.7])
    wrong = run(MODEL, PROMPTS[part], batch(0.7)[part], stub, k=5)
    assert ids_of(wrong) != ids_of(plain[0.7])[part]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_real_model_in_bfloat16_at_a_fixed_width_says_the_same(temperature: float) -> None:
    from runs import prompts, target

    model, texts = target("llama", torch.bfloat16), prompts((9, 30, 14, 22))
    values = (
        {"repetition_penalty": 1.2, "top_k": 20, "top_p": 0.9},
        {"frequency_penalty": 0.4, "min_p": 0.05, "bad_words": [[5], [9, 11]]},
        {"logit_bias": {7: 3.0}, "top_p": 0.5, "min_tokens": 5, "stop_token_ids": [7]},
        {"presence_penalty": 1.0, "allowed_token_ids": list(range(20, 90))},
    )
    wanted = [params(v, i, temperature) for i, v in enumerate(values)]
    expected = run(model, texts, wanted, decode_width=4)
    for stub in (Perfect.of_run(texts, expected), Garbage(128), GarbageTree(128)):
        assert ids_of(run(model, texts, wanted, stub, decode_width=4)) == ids_of(expected)


def test_drafts_end_before_the_first_id_that_cannot_be_emitted() -> None:
    seen: list[IntArray] = []

    class Watched(Fixed):
        def propose(self, batch: Any) -> Any:
            draft = super().propose(batch)
            seen.append(draft.tokens)
            return draft

    for values, kept in (
        ({"bad_words": [[8]]}, 2),
        ({"bad_words": [[6, 8]]}, 2),
        ({"bad_words": [[9, 8]]}, 4),
        ({"allowed_token_ids": [1, 6, 9]}, 2),
        ({"min_tokens": 20, "stop_token_ids": [8]}, 2),
    ):
        result = run(MODEL, [[1]], params(values, 0, 0.0, max_tokens=20), Watched([1, 6, 8, 9]), k=4)[0]
        assert result.metrics.proposed > result.metrics.drafted or kept == 4
        assert len(result.metrics.drafted_per_pos) == kept, values
    assert all(len(draft) for draft in seen[:-1])


def test_a_bad_word_is_not_looked_for_in_the_prompt() -> None:
    """The prompt ends with 6, so that the word 6 5 would begin in it; in the output it is forbidden."""
    wanted = params({"bad_words": [[6, 5]], "logit_bias": {6: 2.0, 5: 1.0}}, 0, 0.0)
    for stub in (None, Fixed([6, 5, 6])):
        said = run(MODEL, [[6]], wanted, stub)[0].outputs[0].token_ids
        assert said[0] == 5 and 6 in said
        assert (6, 5) not in itertools.pairwise(said)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bias beyond the vocabulary": ({"logit_bias": {12: 1.0}}, "logit_bias has the id 12"),
    "allowed id beyond the vocabulary": ({"allowed_token_ids": [3, 99]}, "allowed_token_ids has the id 99"),
    "stop id beyond the vocabulary": ({"stop_token_ids": [12]}, "stop_token_ids has the id 12"),
    "bad id beyond the vocabulary": ({"bad_words": [[1, 12]]}, "bad_words has the id 12"),
    "bad words without a tokenizer": ({"bad_words": ["word"]}, "bad_words .*no tokenizer"),
    "nothing is left": ({"allowed_token_ids": [3, 4], "bad_words": [[3], [4]]}, "allowed_token_ids and bad_words"),
    "only ends are left": (
        {"allowed_token_ids": [3, EOS], "bad_words": [[3]], "min_tokens": 2, "ignore_eos": False},
        "min_tokens=2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name_and_nothing_is_queued(case: str) -> None:
    values, expected = REFUSED[case]
    with LLM(hf_model=MODEL) as llm:
        with pytest.raises(RequestError, match=expected):
            llm.generate([[1], [2]], [SamplingParams(), params(values, 0, 0.0)])
        assert not llm._engine.scheduler.waiting and not llm._engine.scheduler.running


@pytest.mark.parametrize("stub", [None, Fixed([3, 4, 5])])
def test_a_request_that_runs_out_of_ids_ends_with_an_error_and_leaves_the_others_alone(stub: Stub | None) -> None:
    """After 3 only 4 is allowed, and after 4 nothing."""
    dead_end = {"allowed_token_ids": [3, 4], "bad_words": [[3, 3], [4, 3], [4, 4]], "logit_bias": {3: 9.0}}
    wanted = [params({"top_k": 3}, 0, 0.7), params(dead_end, 1, 0.7), params({}, 2, 0.0)]
    alone = [run(MODEL, [[1]], one)[0].outputs[0] for one in (wanted[0], wanted[2])]
    first, ended, last = (result.outputs[0] for result in run(MODEL, [[1]] * 3, wanted, stub))
    assert [first.token_ids, last.token_ids] == [output.token_ids for output in alone]
    assert (ended.token_ids, ended.finish_reason) == ([3, 4], "error")
    assert ended.error is not None and "allowed_token_ids, bad_words" in ended.error and "output id 2" in ended.error
    assert first.error is None


def test_a_dead_end_that_only_drafts_reach_ends_nothing() -> None:
    """Text never says 3 (its bias is against it), so that its dead end is only met by drafts."""
    values = {"allowed_token_ids": [3, 4, 8], "bad_words": [[3, 3], [3, 4], [3, 8]], "logit_bias": {3: -50.0}}
    wanted = params(values, 0, 0.7)
    expected = run(MODEL, [[1]], wanted)
    assert expected[0].outputs[0].finish_reason == "length"
    spec = run(MODEL, [[1]], wanted, Fixed([3, 4, 8]))
    assert ids_of(spec) == ids_of(expected) and spec[0].metrics.drafted > 0


def test_bad_words_are_texts_with_and_without_a_space_before_them() -> None:
    from words import tiny_tokenizer

    from specdec_testing.targets import tiny_target

    tokenizer = tiny_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    spellings = [tokenizer.encode(text) for text in (" cat", "cat")]
    assert spellings[0] != spellings[1]
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        for spelling in spellings:

            def spell(output: Any, logits: Any, ids: list[int] = spelling) -> Any:
                logits[ids[len(output)]] += 1000.0
                return logits

            common = {"temperature": 0.0, "max_tokens": len(spelling), "logits_processors": [spell]}
            for words, said in ((None, True), (["hat"], True), (["cat"], False), ([" cat"], False)):
                ids = llm.generate("the", SamplingParams(**common, bad_words=words))[0].outputs[0].token_ids
                assert (ids == spelling) == said and ids[:-1] == spelling[:-1]
        with pytest.raises(RequestError, match="bad_words"):
            llm.generate("the", SamplingParams(bad_words=["  "]))
