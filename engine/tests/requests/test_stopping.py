"""When a request ends: the earliest rule inside an accepted block wins, and nothing after it is kept or shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import ids_of, run, target

from specdec_engine import LLM, SamplingParams
from specdec_engine.requests.request import Request
from specdec_engine.requests.stopping import StopRules
from specdec_testing.stubs import Perfect, stub_plugin
from specdec_testing.table import table_target

# A model that says 3, 4, 5, 43, 7, 9, ... and begins again: blocks of it are known in advance.
PATH = (3, 4, 5, 43, 7, 9, 10, 11, 12, 13, 14, 15)
VOCAB = 48


def cycle(**config: Any) -> Any:
    table = np.full((VOCAB, VOCAB), 1 / VOCAB)
    for before, after in zip(PATH, PATH[1:] + PATH[:1], strict=True):
        table[before] = np.eye(VOCAB)[after]
    return table_target(table, **config)


def said(prompt: list[int], count: int) -> list[int]:
    """The ids that the model goes on with."""
    at = PATH.index(prompt[-1]) + 1
    return [PATH[(at + i) % len(PATH)] for i in range(count)]


def perfect() -> Perfect:
    return Perfect(lambda request: said(request.tokens[: request.prompt_len].tolist(), 300))


def answer(prompt: list[int], k: int = 6, stub: bool = True, llm: Any = None, **params: Any) -> Any:
    """The one output of a greedy request whose drafts are all right."""
    llm = dict(llm or {})
    model = cycle(eos_token_id=llm.pop("eos_token_id", None))
    sampling = SamplingParams(temperature=0.0, **{"max_tokens": 20, **params})
    return run(model, [prompt], sampling, perfect() if stub else None, k=k, **llm)[0]


@pytest.mark.parametrize("stub", [False, True])
def test_the_end_of_the_text_inside_an_accepted_block_ends_it_there(stub: bool) -> None:
    result = answer([3], stub=stub, llm={"eos_token_id": 43})
    output = result.outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([4, 5, 43], "stop", None)
    assert result.finished
    if stub:
        assert result.metrics.accepted == 6, "the whole block was right"


@pytest.mark.parametrize("stub", [False, True])
@pytest.mark.parametrize("stops", [[43], [9, 43], (43, 44), [2, 43, 47]])
def test_a_stop_id_ends_the_text_and_is_named(stub: bool, stops: Any) -> None:
    output = answer([3], stub=stub, stop_token_ids=stops).outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([4, 5, 43], "stop", 43)


@pytest.mark.parametrize("stub", [False, True])
def test_ignoring_the_end_of_the_text_goes_on_after_it(stub: bool) -> None:
    output = answer([3], stub=stub, llm={"eos_token_id": 43}, ignore_eos=True, max_tokens=30).outputs[0]
    assert (output.token_ids, output.finish_reason) == (said([3], 30), "length")


def test_a_stop_id_holds_even_if_it_is_an_end_of_text_that_is_ignored() -> None:
    params = {"ignore_eos": True, "stop_token_ids": [43]}
    output = answer([3], llm={"eos_token_id": 43}, **params).outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == ([4, 5, 43], "stop", 43)


def test_any_of_several_ends_of_text_ends_it() -> None:
    for eos, length in ((43, 3), (7, 4)):
        assert len(answer([3], llm={"eos_token_id": [eos, 15]}).outputs[0].token_ids) == length


def test_the_first_id_of_an_answer_may_end_it() -> None:
    for params, reason in (({"stop_token_ids": [4]}, 4), ({}, None)):
        result = answer([3], llm={"eos_token_id": None if params else 4}, **params)
        output = result.outputs[0]
        assert (output.token_ids, output.finish_reason, output.stop_reason) == ([4], "stop", reason)
        assert result.metrics.drafted == 0


@pytest.mark.parametrize("stub", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8, 15])
def test_exactly_max_tokens_come_out_and_no_draft_is_made_that_could_not_stay(stub: bool, count: int) -> None:
    result = answer([3, 4, 5], stub=stub, max_tokens=count)
    output = result.outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (said([5], count), "length", None)
    assert result.metrics.emitted_with_draft == result.metrics.kept_with_draft


@pytest.mark.parametrize("stub", [False, True])
@pytest.mark.parametrize("max_tokens", [None, 500])
def test_the_context_ends_an_answer_as_length(stub: bool, max_tokens: int | None) -> None:
    prompt = [3, 4, 5, 43, 7, 9, 10, 11, 12]
    output = answer(prompt, stub=stub, llm={"max_model_len": 16}, max_tokens=max_tokens).outputs[0]
    assert (output.token_ids, output.finish_reason) == (said([12], 7), "length")


def test_a_kv_budget_below_the_context_ends_an_answer_as_length() -> None:
    output = answer([3], llm={"kv_cache_tokens": 32}, max_tokens=None).outputs[0]
    assert output.finish_reason == "length"
    assert 1 + len(output.token_ids) == 32


EARLIEST: dict[str, tuple[dict[str, Any], list[int], str, int | None]] = {
    "length before a stop id": ({"max_tokens": 2, "stop_token_ids": [43]}, [4, 5], "length", None),
    "a stop id before length": ({"max_tokens": 5, "stop_token_ids": [43]}, [4, 5, 43], "stop", 43),
    "both at one place": ({"max_tokens": 3, "stop_token_ids": [43]}, [4, 5, 43], "stop", 43),
    "the first of two stop ids": ({"stop_token_ids": [10, 7]}, [4, 5, 43, 7], "stop", 7),
    "a stop id before the end of text": ({"stop_token_ids": [7]}, [4, 5, 43, 7], "stop", 7),
    "the end of text before a stop id": ({"stop_token_ids": [10]}, [4, 5, 43, 7, 9], "stop", None),
}


@pytest.mark.parametrize("stub", [False, True])
@pytest.mark.parametrize("case", EARLIEST)
def test_the_earliest_rule_wins_row_30(case: str, stub: bool) -> None:
    params, ids, finish, stop = EARLIEST[case]
    output = answer([3], stub=stub, llm={"eos_token_id": 9}, **params).outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (ids, finish, stop)


@pytest.mark.parametrize(
    ("block", "params", "expected"),
    [
        ([4, 5, 43, 7, 43, 5], {"max_tokens": 2, "stop_token_ids": [43]}, (2, "length", None)),
        ([4, 5, 43, 7, 43, 5], {"max_tokens": 9, "stop_token_ids": [43]}, (3, "stop", 43)),
        ([2, 5, 2], {}, (1, "stop", None)),
        ([5, 2, 2], {"max_tokens": 2}, (2, "stop", None)),
        ([5, 2, 6], {"ignore_eos": True}, (3, None, None)),
        ([5, 6, 7], {"max_tokens": 3}, (3, "length", None)),
        ([2, 43, 2, 5], {"min_tokens": 3, "stop_token_ids": [43]}, (3, "stop", None)),
        ([2, 43, 43, 2], {"min_tokens": 3, "stop_token_ids": [43]}, (3, "stop", 43)),
        ([2, 2, 5], {"min_tokens": 2, "max_tokens": 2}, (2, "stop", None)),
    ],
)
def test_a_block_is_cut_where_the_first_rule_fires_row_30(
    block: list[int], params: dict[str, Any], expected: tuple[int, str | None, int | None]
) -> None:
    request = Request("0-0", 0, np.array([1], np.int32), SamplingParams(**params), 0, 0)
    assert StopRules(frozenset({2}), 100).cut(request, np.array(block, np.int32)) == expected


def test_counters_are_those_before_the_cut_beside_those_after_it() -> None:
    metrics = answer([3], k=6, stop_token_ids=[43]).metrics
    # The prompt's pass gives 4; one step then drafts and accepts 6 and could emit 7, of which 5 and 43 stay.
    assert (metrics.steps, metrics.drafted, metrics.accepted, metrics.accepted_kept) == (1, 6, 6, 2)
    assert (metrics.emitted_with_draft, metrics.kept_with_draft, metrics.emitted) == (7, 2, 2)
    assert metrics.mean_acceptance_length == 2.0


def test_a_stream_never_shows_what_a_rule_cut_off() -> None:
    model = cycle(eos_token_id=43)
    config = {"method": "stub", "num_speculative_tokens": 6}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(perfect())}) as llm:
        seen = [list(o.outputs[0].token_ids) for o in llm.stream([[3]], SamplingParams(temperature=0.0, max_tokens=20))]
    assert seen == [[4], [4, 5, 43]]


def test_a_row_that_ends_inside_a_block_disturbs_no_other_row() -> None:
    model = cycle()
    prompts = [[3], [4], [5], [43]]
    params = [SamplingParams(temperature=0.0, max_tokens=25, stop_token_ids=[stop]) for stop in (7, 44, 10, 3)]
    plain = run(model, prompts, params)
    assert [r.outputs[0].finish_reason for r in plain] == ["stop", "length", "stop", "stop"]
    spec = run(model, prompts, params, perfect(), k=6)
    assert ids_of(spec) == ids_of(plain)
    assert [r.outputs[0].stop_reason for r in spec] == [7, None, 10, 3]


def test_each_sample_of_a_prompt_ends_by_itself() -> None:
    model = target("llama")
    params = SamplingParams(temperature=1.0, seed=5, n=6, max_tokens=40, ignore_eos=True, stop_token_ids=range(3, 12))
    results = run(model, [[5, 6, 7]], params)
    lengths = {len(sample.token_ids) for sample in results[0].outputs}
    assert len(lengths) > 2
    for sample in results[0].outputs:
        inside = [token in range(3, 12) for token in sample.token_ids]
        assert not any(inside[:-1])
        assert (sample.stop_reason == sample.token_ids[-1]) == inside[-1] == (sample.finish_reason == "stop")


def test_the_proposer_is_told_the_text_that_stayed() -> None:
    stub = perfect()
    finals: list[list[int]] = []
    stub.finish = lambda request, reason: finals.append([*request.tokens.tolist(), reason])  # type: ignore[method-assign]
    run(cycle(eos_token_id=43), [[3]], SamplingParams(temperature=0.0, max_tokens=20), stub, k=6)
    assert finals == [[3, 4, 5, 43, "done"]]
