"""Callers that share an engine, or the model of an engine, get what each would get alone, whoever makes the steps."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from runs import VOCAB, ids_of, params, prompts, target

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Garbage, stub_plugin

CALLS = 3


def together(*callers: Callable[[], Any]) -> list[list[Any]]:
    """What each caller returns, each in a thread of its own, called CALLS times; errors are raised."""
    found: list[list[Any]] = [[] for _ in callers]
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            found[index] = [callers[index]() for _ in range(CALLS)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(callers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def engine(model: Any, **more: Any) -> LLM:
    config = {"method": "stub", "num_speculative_tokens": 3}
    return LLM(
        hf_model=model, decode_width=8, speculative_config=config, plugins={"stub": stub_plugin(Garbage(VOCAB))}, **more
    )


def kinds() -> list[Any]:
    """Pairs of prompts and parameters, one a caller."""
    lengths = ((1, 40, 7), (33, 2), (64, 17, 5), (9,))
    return [
        (prompts(some, seed=i), params(len(some), temperature=float(i % 2), max_tokens=12))
        for i, some in enumerate(lengths)
    ]


def callers(engines: Sequence[LLM]) -> list[Callable[[], Any]]:
    """Calls of `generate` and `stream`, in turn, over the engines."""

    def streamed(llm: LLM, texts: Any, sampling: Any) -> Any:
        last = {output.request_id: output for output in llm.stream(texts, sampling)}
        return ids_of([last[name] for name in sorted(last, key=int)])

    calls: list[Callable[[], Any]] = []
    for i, (llm, (texts, sampling)) in enumerate(zip(itertools.cycle(engines), kinds(), strict=False)):
        if i % 2:
            calls.append(lambda llm=llm, texts=texts, sampling=sampling: streamed(llm, texts, sampling))
        else:
            calls.append(lambda llm=llm, texts=texts, sampling=sampling: ids_of(llm.generate(texts, sampling)))
    return calls


@pytest.mark.parametrize("shared", ["engine", "model"])
def test_threads_over_one_model_get_what_each_would_get_alone(shared: str) -> None:
    model = target("llama")
    engines = [engine(model)] if shared == "engine" else [engine(model), engine(model, max_num_seqs=2)]
    alone = [call() for call in callers(engines)]
    for found, expected in zip(together(*callers(engines)), alone, strict=True):
        assert found == [expected] * CALLS
    for llm in engines:
        llm._engine.target.arena.check_integrity([])
        llm.close()


def test_an_engine_can_be_made_over_a_model_while_another_one_runs_it() -> None:
    model = target("llama")
    texts, sampling = kinds()[2]
    first = engine(model)
    alone = ids_of(first.generate(texts, sampling))

    def made() -> Any:
        with engine(model) as llm:
            return ids_of(llm.generate(texts, sampling))

    found = together(lambda: ids_of(first.generate(texts, sampling)), made)
    assert found == [[alone] * CALLS] * 2


def test_a_step_advances_the_requests_of_all_threads() -> None:
    with LLM(hf_model=target("llama")) as llm:
        run = llm.start([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        thread = threading.Thread(target=lambda: llm.generate([[5, 9]], run.groups[0].requests[0].sampling_params))
        thread.start()
        thread.join()
        assert run.finished, "the other thread's steps were steps of this run, too"
        assert [(index, len(new)) for index, new in run.gains()] == [(0, 8)]


def test_streams_and_generate_in_one_thread_each_show_all_gains_of_their_own() -> None:
    with LLM(hf_model=target("llama")) as llm:
        long, short = (SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (9, 5))
        alone = [ids_of(llm.generate([ids], which))[0][0] for ids, which in (([5, 6], long), ([7, 8, 9], short))]
        first, second = llm.stream([[5, 6]], long), llm.stream([[7, 8, 9], [5, 6]], [short, long])
        snapshots: list[list[Any]] = [[next(first)], [next(second)]]
        (whole,) = llm.generate([[7, 8, 9]], long)  # makes all the steps that the streams need
        for stream, seen in zip((first, second), snapshots, strict=True):
            seen.extend(stream)
    assert len(whole.outputs[0].token_ids) == 9
    by_prompt = [snapshots[0], *([s for s in snapshots[1] if len(s.prompt_token_ids) == n] for n in (3, 2))]
    for seen, expected in zip(by_prompt, (alone[0], alone[1], alone[0]), strict=True):
        assert [snapshot.finished for snapshot in seen] == [False] * (len(seen) - 1) + [True]
        assert seen[-1].outputs[0].token_ids == expected
        assert all(a.outputs[0].token_ids != b.outputs[0].token_ids for a, b in itertools.pairwise(seen))


def test_a_stream_ends_with_its_last_snapshot_when_another_thread_closes_the_engine() -> None:
    llm = LLM(hf_model=target("llama"))
    stream = llm.stream([[5, 6]], SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
    first = next(stream)
    thread = threading.Thread(target=llm.close)
    thread.start()
    thread.join()
    last = list(stream)[-1]
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
    assert last.outputs[0].token_ids[:1] == first.outputs[0].token_ids


def test_an_engine_with_requests_is_not_paused() -> None:
    with LLM(hf_model=target("llama")) as llm:
        with llm.start([[5, 6]], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)) as run:
            run.step()
            with pytest.raises(RequestError, match="pause needs an idle engine"):
                llm.pause()
        llm.pause()
        llm.resume(512)
        assert len(llm.generate([[5, 6]], SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids) == 2
