"""Limits that follow the batch: what runs above a threshold, who drafts again below it, and how a budget is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import ControllerPlugin, CountingVerifier, ids_of, prompts, run, target

from specdec_core.host.budget import share
from specdec_engine import LLM, SamplingParams
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Fixed, Garbage, Perfect, stub_plugin

OFF_ABOVE_TWO = {"disable_by_batch_size": 2}
LONG, SHORT = 24, 3


class Watching:
    """A controller that changes nothing and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def limit(self, requests: Any, k: Any) -> list[int]:
        self.calls += 1
        return list(k)

    def observe(self, stats: Any) -> None:
        pass


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def recorder(when_off: Any, rows: Any = "all", inner: Any = None) -> RecordingProposer:
    return RecordingProposer(rows, hidden=rows != "none", when_off=when_off, inner=inner or Garbage(128))


def there_and_back(stub: Any, times: int = 1, config: Any = OFF_ABOVE_TWO) -> tuple[LLM, list[Any], list[Any]]:
    """One long request alone, then among three short ones, then alone again, `times` times; and the plain results."""
    model, texts = target("llama"), prompts((9, *[5, 6, 7] * times))
    sampling = [greedy(LONG), *[greedy(SHORT)] * 3 * times]
    plain = run(model, texts, sampling)
    if isinstance(stub.inner, Perfect):
        stub.inner = Perfect.of_run(texts, plain)
    whole = {"method": "stub", "num_speculative_tokens": 3, **config}
    with LLM(hf_model=model, speculative_config=whole, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        stream = llm.stream(texts[0], sampling[0])
        results: list[Any] = []
        for i in range(times):
            for _ in range(2):
                next(stream)
            results += llm.generate(texts[1 + 3 * i : 4 + 3 * i], sampling[1 + 3 * i : 4 + 3 * i])
        results.insert(0, list(stream)[-1])
    return llm, results, plain


def calls_for(stub: RecordingProposer, name: str) -> list[int]:
    """Return how many ids the request had at each call that it was part of."""
    return [len(call.tokens[i]) for call in stub.calls_seen for i, each in enumerate(call.request_ids) if each == name]


@pytest.mark.parametrize(
    ("rows", "off"),
    [("none", OFF_ABOVE_TWO), ("all", {"num_speculative_tokens_per_batch_size": {"1-2": 3, "3-9": 0}})],
)
def test_above_the_threshold_neither_proposer_verifier_nor_controller_is_called(rows: Any, off: Any) -> None:
    model, texts = target("llama"), prompts((9, 5, 6))
    sampling = [greedy(5)] * len(texts)
    stub, verifier, controller = recorder("catch_up", rows), CountingVerifier(), Watching()
    config = {**off, "rejection_sample_method": "counting", "controller": "watching"}
    plugins = {"counting": verifier, "watching": ControllerPlugin(controller)}
    spec = run(model, texts, sampling, stub, config=config, plugins=plugins)
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    assert (stub.started, stub.calls, verifier.calls, controller.calls) == ([], 0, 0, 0)
    run(model, texts[:2], sampling[:2], stub, config=config, plugins=plugins)
    assert min(stub.calls, verifier.calls, controller.calls) > 0, "at the threshold itself they are"


@pytest.mark.parametrize(("when_off", "rows"), [("catch_up", "none"), ("gap", "all"), ("gap", "last")])
def test_back_below_the_threshold_a_perfect_drafter_accepts_everything_again(when_off: Any, rows: Any) -> None:
    stub = recorder(when_off, rows, inner=Perfect({}))
    _, results, plain = there_and_back(stub)
    assert ids_of(results) == ids_of(plain)
    sizes = calls_for(stub, "0-0")
    assert max(np.diff(sizes)) >= SHORT, "no call while it was off"
    assert results[0].metrics.acceptance_rate == 1.0
    assert results[0].metrics.drafted > LONG // 2
    assert stub.inner.strayed == 0
    assert rows == "none" or stub.layout_problems() == []


def test_rows_dropped_while_off_are_one_gap_and_rows_after_it_are_whole() -> None:
    stub = recorder("gap")
    there_and_back(stub)
    own = [(call, call.request_ids.index("0-0")) for call in stub.calls_seen if "0-0" in call.request_ids]
    flags = [bool(call.rows.gap[i]) for call, i in own if call.rows is not None]
    assert sum(flags) == 1
    positions = [p for call, i in own if call.rows is not None for p in call.rows.positions[call.rows.request == i]]
    steps = np.diff(positions)
    assert sorted(set(steps.tolist()))[0] == 1
    assert (steps > 1).sum() == 1, "all rows but those of the time off were delivered, each once"


def test_a_method_that_retires_never_sees_the_request_again_and_takes_later_ones() -> None:
    model, texts = target("llama"), prompts((9, 5, 6, 7))
    stub = recorder("retire")
    config = {"method": "stub", "num_speculative_tokens": 3, **OFF_ABOVE_TWO}
    with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub_plugin(stub)}, strict=True) as llm:
        stream = llm.stream(texts[0], greedy(LONG))
        for _ in range(3):
            next(stream)
        (long,) = llm._engine.scheduler.running
        llm.generate(texts[1:], [greedy(SHORT)] * 3)
        assert stub.finished == [("0-0", "aborted")]
        calls = stub.calls
        for _ in range(4):
            next(stream)
        assert stub.calls == calls
        assert llm._engine.runner._states[long.id].pending == [], "its rows are not kept for anybody"
        llm.generate(texts[1], greedy(SHORT))
        assert stub.calls > calls
        stream.close()
    assert stub.started == ["0-0", "4-0"]
    assert stub.finished == [("0-0", "aborted"), ("4-0", "done")]


@pytest.mark.parametrize(("when_off", "rows"), [("catch_up", "none"), ("gap", "all")])
def test_crossing_the_threshold_again_and_again_rebuilds_nothing(when_off: Any, rows: Any) -> None:
    stub = recorder(when_off, rows)
    llm, results, plain = there_and_back(stub, times=2)
    assert ids_of(results) == ids_of(plain)
    assert stub.started.count("0-0") == 1, "it is not started again"
    assert [reason for name, reason in stub.finished if name == "0-0"] == ["done"]
    assert {name for name, _ in stub.finished} == set(stub.started)
    assert len(calls_for(stub, "0-0")) > 4
    assert llm.get_metrics().failures == 0


def test_each_batch_size_gets_the_k_of_its_range_and_gaps_keep_the_one_before() -> None:
    model, texts = target("llama"), prompts((9, 5, 6, 7, 8))
    sampling = [greedy(tokens) for tokens in (4, 8, 12, 16, 26)]  # they leave one by one: 5, 4, 3, 2, 1 are running
    stub = recorder("catch_up", "none", inner=Fixed([7] * 9))
    schedule = [[1, 1, 9], [2, 2, 3], [4, 4, 1], [5, 5, 0]]
    config = {"num_speculative_tokens_per_batch_size": schedule}
    spec = run(model, texts, sampling, stub, k=5, config=config)
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    most: dict[int, set[int]] = {}
    for call in stub.calls_seen:
        most.setdefault(len(call.request_ids), set()).add(max(call.max_draft))
    assert 5 not in most
    assert {size: max(ks) for size, ks in most.items()} == {4: 1, 3: 3, 2: 3, 1: 5}


def test_the_smaller_of_schedule_and_threshold_holds() -> None:
    model, texts = target("llama"), prompts((9, 5, 6))
    config = {"num_speculative_tokens_per_batch_size": [[1, 9, 2]], "disable_by_batch_size": 2}
    stub = recorder("catch_up", "none")
    run(model, texts, [greedy(5)] * 3, stub, config=config)
    assert stub.calls == 0
    run(model, texts[:2], [greedy(5)] * 2, stub, config=config)
    assert {most for call in stub.calls_seen for most in call.max_draft} <= {0, 1, 2}
    assert max(most for call in stub.calls_seen for most in call.max_draft) == 2


@pytest.mark.parametrize(
    ("limits", "total", "shared"),
    [
        ([4, 4, 4], 12, [4, 4, 4]),
        ([4, 4, 4], 9, [3, 3, 3]),
        ([4, 4, 4], 8, [3, 3, 2]),
        ([1, 4, 4], 6, [1, 3, 2]),
        ([0, 9, 1], 5, [0, 4, 1]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([], 3, []),
    ],
)
def test_a_budget_is_cut_from_the_longest_drafts_first(limits: list[int], total: int, shared: list[int]) -> None:
    assert share(limits, total) == shared


def test_shares_use_the_whole_budget_and_take_more_from_no_row_than_from_a_longer_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        limits = rng.integers(0, 8, int(rng.integers(1, 7))).tolist()
        total = int(rng.integers(1, 25))
        shared = share(limits, total)
        assert sum(shared) == min(sum(limits), total)
        assert all(0 <= part <= limit for part, limit in zip(shared, limits, strict=True))
        for part, limit in zip(shared, limits, strict=True):
            assert part == limit or part >= max(shared) - 1


@pytest.mark.parametrize("total", [2, 7])
def test_no_step_drafts_more_than_max_step_tokens_and_the_budget_is_used(total: int) -> None:
    model, texts = target("llama"), prompts((9, 5, 6))
    sampling = [greedy(6 + 3 * i) for i in range(3)]
    stub = recorder("catch_up", "none", inner=Fixed([7] * 9))
    spec = run(model, texts, sampling, stub, k=4, config={"max_step_tokens": total})
    assert ids_of(spec) == ids_of(run(model, texts, sampling))
    given = [sum(call.max_draft) for call in stub.calls_seen]
    assert max(given) == total
    assert all(sum(call.draft.lengths or ()) == sum(call.max_draft) for call in stub.calls_seen)


@pytest.mark.parametrize("off", [True, False])
def test_steps_without_speculation_are_not_counted_as_empty(off: bool) -> None:
    config: dict[str, Any] = {"method": "stub", "num_speculative_tokens": 4}
    if off:
        config["num_speculative_tokens_per_batch_size"] = [[1, 99, 0]]
    sampling = SamplingParams(temperature=0.0, max_tokens=SHORT, ignore_eos=True)
    plugins = {"stub": stub_plugin(Fixed([]))}
    with LLM(hf_model=target("llama"), speculative_config=config, plugins=plugins) as llm:
        llm.generate(prompts((5, 40)), sampling)
        metrics = llm.get_metrics()
    assert metrics.steps == 2 * (SHORT - 1)
    assert metrics.empty == (0 if off else 2 * (SHORT - 2)), (
        "the last id of an answer has no room for a draft before it"
    )
