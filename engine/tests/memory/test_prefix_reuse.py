"""What a request takes over: which rows do not run, what is counted, what proposers get, when all is forgotten."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest
import torch
from prefixes import engine, sharing, told, watched
from prometheus_client import CollectorRegistry, generate_latest
from runs import ids_of, params, prompts, run, target

from specdec_core.errors import RequestError, TargetError
from specdec_engine import LLM, AsyncLLM, SamplingParams
from specdec_engine.memory.kv_plan import kept_row_bytes
from specdec_engine.reporting import prometheus
from specdec_testing.recording import RecordingProposer
from specdec_testing.stubs import Garbage, Perfect
from specdec_testing.targets import tiny_target

ONE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
PAGE = 32


def text(count: int, seed: int = 0) -> dict[str, list[int]]:
    return prompts((count,), seed)[0]


def counted(llm: LLM) -> tuple[int, int]:
    llm._engine.stats.measure()
    state = llm.get_state()
    return state.prefix_cache_queries, state.prefix_cache_hits


@pytest.mark.parametrize(
    ("first", "second", "same", "taken"),
    [
        (100, 100, 100, 96),  # the newest id always runs, and so does a page that is not full
        (96, 96, 96, 64),
        (100, 97, 97, 96),
        (100, 120, 90, 64),
        (100, 120, 31, 0),
        (20, 120, 20, 0),
        (1, 1, 1, 0),
    ],
)
def test_a_second_request_runs_what_is_behind_the_common_pages_and_no_more(
    first: int, second: int, same: int, taken: int
) -> None:
    texts = sharing((first, second), same)
    with engine(target("llama")) as llm, watched(llm) as watch:
        results = [llm.generate(each, ONE)[0] for each in texts]
        assert [result.num_cached_tokens for result in results] == [0, taken]
        assert watch.rows == [("0-0", 0, first), ("1-0", taken, second - taken)]
        assert counted(llm) == (first + second, taken)


def test_answers_are_taken_over_like_prompts_and_with_a_decode_width_prompts_alone_are() -> None:
    for width, taken in ((None, 128), (4, 64)):
        with engine(target("llama"), decode_width=width, prefill_chunk_size=64) as llm, watched(llm) as watch:
            result = llm.generate(text(70), SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True))[0]
            later = [*result.prompt_token_ids, *result.outputs[0].token_ids]
            assert llm.generate([later], ONE)[0].num_cached_tokens == taken
            assert watch.run_of("1-0") == 150 - taken


def test_with_a_decode_width_whole_chunks_are_taken_over_so_that_all_later_chunks_are_cut_alike() -> None:
    texts = sharing((200, 200), 170)
    with engine(target("llama"), decode_width=4, prefill_chunk_size=48) as llm, watched(llm) as watch:
        assert [llm.generate(each, ONE)[0].num_cached_tokens for each in texts] == [0, 96]
        assert watch.rows[-3:] == [("1-0", 96, 48), ("1-0", 144, 48), ("1-0", 192, 8)]


def test_what_accepted_drafts_have_left_is_taken_over_as_well() -> None:
    model, texts, sampling = target("llama"), [text(30)], params(1, max_tokens=70)
    plain = run(model, texts, sampling)
    with engine(model, Perfect.of_run(texts, plain), k=7) as llm:
        assert llm.generate(texts, sampling)[0].metrics.accepted > 50
        later = {"prompt_token_ids": texts[0]["prompt_token_ids"] + ids_of(plain)[0][0]}
        result = llm.generate(later, ONE)
        assert result[0].num_cached_tokens == 96
    assert ids_of(result) == ids_of(run(model, later, ONE, enable_prefix_caching=False))


def test_equal_pages_behind_other_ids_are_other_pages() -> None:
    page, other = (prompts((PAGE,), seed)[0]["prompt_token_ids"] for seed in (1, 2))
    with engine(target("llama")) as llm:
        for ids in (page * 3 + [5], other + page * 2 + [5], page + other + page + [5]):
            result = llm.generate([ids], ONE)[0]
            assert result.num_cached_tokens == (PAGE if ids[PAGE:] == other + page + [5] else 0)
            assert llm.generate([ids], ONE)[0].num_cached_tokens == 3 * PAGE
            assert ids_of([result]) == ids_of(run(target("llama"), [ids], ONE, enable_prefix_caching=False))


def test_pages_are_shared_by_requests_of_the_same_salt_and_by_no_others() -> None:
    ids = text(100)["prompt_token_ids"]
    with engine(target("llama")) as llm:
        for salt, taken in (("a", 0), ("b", 0), (None, 0), ("a", 96), ("b", 96), (None, 96), ("c", 0)):
            prompt = {"prompt_token_ids": ids, **({} if salt is None else {"cache_salt": salt})}
            assert llm.generate(prompt, ONE)[0].num_cached_tokens == taken, salt
        together = [{"prompt_token_ids": [7, *ids], "cache_salt": salt} for salt in ("a", "b", "a")]
        assert [result.num_cached_tokens for result in llm.generate(together, ONE)] == [0, 0, 96]


@pytest.mark.parametrize("salt", ["", 3, b"a"])
def test_a_salt_that_is_no_text_is_refused_by_name(salt: object) -> None:
    with engine(target("llama")) as llm, pytest.raises(RequestError, match=r"cache_salt=.*expected a text"):
        llm.generate([{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [5, 6], "cache_salt": salt}], ONE)


def test_a_preempted_request_runs_an_id_before_its_newest_one_so_that_its_proposer_has_a_row_for_it() -> None:
    model, texts, sampling = target("llama"), [text(60)], params(1, max_tokens=12)
    plain = run(model, texts, sampling)
    stub = RecordingProposer("all", inner=Garbage(128))
    with engine(model, stub) as llm, watched(llm) as watch:
        started = llm.start(texts, sampling)
        (request,) = started.groups[0].requests
        while len(request) < 2 * PAGE + 1:
            started.step()
        assert (len(request), request.segment.fixed) == (2 * PAGE + 1, 2)
        llm._engine.scheduler._preempt(request)
        started.step()
        assert watch.rows[1:] == [("0-0", PAGE, PAGE + 1)]
        while not started.finished:
            started.step()
        assert ids_of(started.outputs()) == ids_of(plain)
    assert stub.layout_problems() == []
    for call in stub.calls_seen:
        assert call.rows is not None and len(call.rows.positions) > 0


@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_samples_of_one_prompt_run_it_once(chunk: int) -> None:
    sampling = SamplingParams(n=4, temperature=0.8, seed=1, max_tokens=2, ignore_eos=True)
    with engine(target("llama"), prefill_chunk_size=chunk) as llm, watched(llm) as watch:
        llm.generate(text(300), sampling)
        assert [watch.run_of(f"0-{i}") for i in range(4)] == [300, 300 - 288, 300 - 288, 300 - 288]
        assert counted(llm) == (1200, 3 * 288)


def test_prompts_of_a_batch_run_each_common_page_once_and_wait_for_no_other_page() -> None:
    texts = [*sharing((200, 150, 100), 70), text(40, seed=9)]
    with engine(target("llama")) as llm, watched(llm) as watch:
        run = llm.start(texts, ONE)
        run.step()
        assert {name for name, _, _ in watch.rows} == {"0-0", "3-0"}, "two wait for the pages of the first"
        while not run.finished:
            run.step()
        assert [watch.run_of(f"{i}-0") for i in range(4)] == [200, 150 - 64, 100 - 64, 40]


def test_a_request_whose_forerunner_is_aborted_runs_its_prompt_itself() -> None:
    texts = [text(200), text(200)]
    with engine(target("llama"), prefill_chunk_size=50) as llm, watched(llm) as watch:
        run = llm.start(texts, ONE)
        run.step()
        run.abort(0)
        while not run.finished:
            run.step()
        assert (watch.run_of("0-0"), watch.run_of("1-0")) == (50, 200 - 32)
        assert ids_of(run.outputs())[1] == ids_of(llm.generate(text(200), ONE))[0]


def test_whoever_asks_for_log_probabilities_of_the_prompt_skips_nothing_and_leaves_pages_for_others() -> None:
    asking = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, ignore_eos=True)
    with engine(target("llama")) as llm, watched(llm) as watch:
        first = llm.generate(text(100), asking)[0]
        second = llm.generate(text(100), asking)[0]
        assert second.prompt_logprobs == first.prompt_logprobs and len(second.prompt_logprobs) == 100
        assert (watch.run_of("1-0"), counted(llm)) == (100, (0, 0))
        assert llm.generate(text(100), ONE)[0].num_cached_tokens == 96


def test_switched_off_nothing_is_published_counted_or_held_back() -> None:
    with engine(target("llama"), reuse=False) as llm, watched(llm) as watch:
        llm.generate([text(100), text(100)], ONE)
        assert llm.generate(text(100), ONE)[0].num_cached_tokens == 0
        assert [count for _, _, count in watch.rows] == [100, 100, 100]
        assert (counted(llm), llm.get_state().kv_pages_published) == ((0, 0), 0)
    with pytest.raises(TargetError, match="enable_prefix_caching='no': expected True or False"):
        LLM(hf_model=target("llama"), enable_prefix_caching="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", ["all", "last"])
@pytest.mark.parametrize("when_off", ["gap", "retire"])
@pytest.mark.parametrize("width", [None, 4])
def test_a_proposer_is_given_the_rows_of_what_was_taken_over_without_a_gap(
    rows: Any, when_off: Any, width: int | None
) -> None:
    model, texts = target("llama"), sharing((100, 110, 90), 70)
    sampling = params(3, max_tokens=12)
    stub = RecordingProposer(rows, aux_layers=(0, 1), when_off=when_off, inner=Garbage(128))
    with engine(model, stub, decode_width=width, prefill_chunk_size=32) as llm:
        results = [llm.generate(texts[i : i + 1], sampling[i])[0] for i in (0, 1, 2, 0)]
        assert [result.num_cached_tokens for result in results] == [0, 64, 64, 96]
    assert stub.layout_problems() == []
    assert not any(call.rows is not None and call.rows.gap.any() for call in stub.calls_seen)
    for result in results:
        ids, seen = result.prompt_token_ids + result.outputs[0].token_ids, []
        with torch.inference_mode():
            states = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states
        for call in stub.calls_seen:
            assert call.rows is not None and call.rows.hidden is not None and call.rows.aux is not None
            own = torch.from_numpy(call.rows.request == _place(call, f"{result.request_id}-0"))
            at = torch.from_numpy(call.rows.positions.astype(np.int64))[own]
            seen += at.tolist()
            torch.testing.assert_close(call.rows.hidden[own], states[-1][0][at], atol=2e-4, rtol=2e-4)
            for layer in (0, 1):
                torch.testing.assert_close(call.rows.aux[own][:, layer], states[layer][0][at], atol=2e-4, rtol=2e-4)
        if rows == "all":
            assert seen == list(range(len(seen))) and len(seen) > len(result.prompt_token_ids)


def _place(call: Any, name: str) -> int:
    return call.request_ids.index(name) if name in call.request_ids else -1


def test_the_states_that_are_kept_for_proposers_are_planned_for_and_only_where_some_are_given_all_rows() -> None:
    model = target("llama")
    hidden = model.config.hidden_size * 4
    for rows, width in (("all", 3 * hidden), ("last", 0)):
        with engine(model, RecordingProposer(rows, aux_layers=(0, 1), inner=Garbage(128))) as llm:
            resolved, info = llm.resolved_config, llm._engine.target.info
            assert kept_row_bytes(resolved, info, torch.float32) == width
            llm.generate(text(40), ONE)
            arena = llm._engine.target.arena
            beside = arena.memory_bytes() - sum(p.numel() * 4 for pair in arena._layers.values() for p in pair)
            assert beside == width * arena.num_tokens


def test_pages_that_nobody_holds_are_as_good_as_free() -> None:
    with engine(target("llama"), kv_cache_tokens=8 * PAGE) as llm:
        llm.generate(text(200), ONE)
        state = llm.get_state()
        assert (state.kv_pages_in_use, state.kv_pages_published) == (0, 6)
        llm.generate(text(240, seed=5), ONE)
        assert llm.get_state().kv_pages_published == 7, "the new text's, which had to have the room"
        assert llm.generate(text(200), ONE)[0].num_cached_tokens == 0
        llm._engine.target.arena.check_integrity([])


def test_a_request_that_does_not_fit_gives_back_what_it_had_taken_over_and_counts_nothing_yet() -> None:
    with engine(target("llama"), kv_cache_tokens=8 * PAGE) as llm:
        llm.generate(text(100), ONE)
        long = llm.start(text(150, seed=5), SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
        long.step()
        queries, _ = counted(llm)
        waiting = llm.start({"prompt_token_ids": text(100)["prompt_token_ids"] + [5] * 60}, ONE)
        for _ in range(3):
            long.step()
            assert counted(llm) == (queries, 0)
            (request,) = llm._engine.scheduler.waiting
            assert (request.run_len, request.segment.pages, request.taken) == (0, [], 0)
        while not waiting.finished:
            waiting.step()
        assert counted(llm) == (queries + 160, waiting.outputs()[0].num_cached_tokens)
        long.__exit__()
        llm._engine.target.arena.check_integrity([])


def forgets(llm: LLM, forget: Any) -> None:
    """After `forget`, a known text runs again and is then known again."""
    llm.generate(text(100), ONE)
    assert llm.generate(text(100), ONE)[0].num_cached_tokens == 96
    forget()
    assert llm._engine.target.arena.pages_published == 0
    assert llm.generate(text(100), ONE)[0].num_cached_tokens == 0
    assert llm.generate(text(100), ONE)[0].num_cached_tokens == 96


def test_reset_pause_and_changes_of_the_model_forget_everything() -> None:
    with engine(target("llama")) as llm:
        forgets(llm, llm.reset_prefix_cache)
        assert llm.reset_prefix_cache() is True

        def again() -> None:
            llm.pause()
            llm.resume(4096)

        forgets(llm, again)
        forgets(llm, lambda: llm.apply_model(lambda model: None))


def test_a_text_that_was_begun_with_other_weights_is_not_shared() -> None:
    with engine(target("llama"), prefill_chunk_size=64) as llm:
        run = llm.start(text(200), ONE)
        run.step()
        llm.reset_prefix_cache()
        while not run.finished:
            run.step()
        assert llm._engine.target.arena.pages_published == 0
        assert llm.generate(text(200), ONE)[0].num_cached_tokens == 0


def test_running_requests_can_be_made_to_run_again_and_read_the_same() -> None:
    model, texts, sampling = target("llama"), prompts((100, 40)), params(2)
    plain = run(model, texts, sampling)
    stub = Garbage(128)
    with engine(model, stub) as llm, watched(llm) as watch:
        started = llm.start(texts, sampling)
        for _ in range(5):
            started.step()
        assert llm.reset_prefix_cache(reset_running_requests=True)
        while not started.finished:
            started.step()
        assert ids_of(started.outputs()) == ids_of(plain)
        assert sorted(stub.finished) == [(f"{i}-0", end) for i in (0, 1) for end in ("done", "preempted")]
        assert watch.run_of("0-0") > 200, "its prompt has run twice"
        assert counted(llm) == (140, 0), "what runs again is not counted again"


def test_the_asynchronous_engine_forgets_as_well() -> None:
    async def ask(serving: AsyncLLM) -> list[int]:
        cached = []
        for i in range(3):
            async for output in serving.generate(text(100), ONE, str(i)):
                last = output
            cached.append(last.num_cached_tokens)
            if i == 1:
                assert await serving.reset_prefix_cache()
        return cached

    with engine(target("llama")) as llm:
        serving = AsyncLLM.over(llm)
        assert asyncio.run(ask(serving)) == [0, 96, 0]
        serving.close()


def test_queries_and_hits_are_scraped_and_logged_under_vllms_names() -> None:
    registry = CollectorRegistry()
    with engine(target("llama")) as llm:
        prometheus.register(llm, model_name="tiny", registry=registry)
        for _ in range(2):
            llm.generate(text(100), ONE)
        scrape = generate_latest(registry).decode()
        assert 'vllm:prefix_cache_queries_total{engine="0",model_name="tiny",proposer=""} 200.0' in scrape
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny",proposer=""} 96.0' in scrape
        assert "Prefix cache hit rate: 48.0%" in llm.get_state().line()


@pytest.mark.slow
def test_two_thousand_requests_leave_no_more_behind_than_two_hundred() -> None:
    model = tiny_target("llama", num_hidden_layers=1)
    rng, texts = np.random.default_rng(0), sharing([70] * 40, 40)
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    sampling = SamplingParams(temperature=0.8, max_tokens=3, ignore_eos=True)
    held, pages = [], 64
    with engine(model, config=config, kv_cache_tokens=pages * PAGE) as llm:
        for _ in range(10):
            for _ in range(5):
                batch = [
                    {"prompt_token_ids": [*each["prompt_token_ids"], *rng.integers(3, 128, 9).tolist()]}
                    for each in texts
                ]
                llm.generate(batch, sampling, use_tqdm=False)
            arena = llm._engine.target.arena
            arena.check_integrity([])
            assert len(arena._free) + len(arena._idle) == pages and len(arena._published) <= pages
            gc.collect()
            held.append((len(gc.get_objects()), arena.memory_bytes()))
        queries, hits = counted(llm)
    assert queries == 2000 * 79 and hits > 2000 * PAGE * 0.9
    objects = [count for count, _ in held]
    assert max(objects[1:]) - objects[0] < 200, objects  # a request alone is more than twenty
    assert len({size for _, size in held}) == 1


def test_equal_texts_give_equal_answers_whoever_came_first() -> None:
    """The order of requests decides who computes a page, and with a decode width not a bit of what comes out."""
    model, sampling = target("llama", torch.bfloat16), params(3, 0.8, max_tokens=6, logprobs=3)
    texts = sharing((130, 150, 140), 128)
    with engine(model, decode_width=4, prefill_chunk_size=32) as llm:
        forward = told(llm.generate(texts, sampling))
        llm.reset_prefix_cache()
        assert told(llm.generate(texts[::-1], sampling[::-1]))[::-1] == forward
