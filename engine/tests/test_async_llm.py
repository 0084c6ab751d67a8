"""Many callers in event loops share one engine: each gets what it would get alone, nothing is left of the others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from runs import VOCAB, params, prompts, target

from specdec_core.errors import RequestError
from specdec_engine import LLM, AsyncLLM, SamplingParams
from specdec_testing.stubs import Garbage, stub_plugin

CALLERS = 50
STUB: dict[str, Any] = {
    "decode_width": 8,
    "speculative_config": {"method": "stub", "num_speculative_tokens": 3},
}
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return target("llama")


def engine(model: Any, **more: Any) -> AsyncLLM:
    return AsyncLLM(hf_model=model, **more)


def assert_nothing_is_left(llm: AsyncLLM) -> None:
    assert not llm.llm._engine.scheduler.running and not llm.llm._engine.scheduler.waiting
    llm.llm._engine.target.arena.check_integrity([])
    assert not llm._worker._names and not llm._worker._running


async def last_of(llm: AsyncLLM, prompt: Any, sampling: SamplingParams, name: str) -> Any:
    last = None
    async for last in llm.generate(prompt, sampling, name):
        assert last.request_id == name
    return last


async def freed(llm: AsyncLLM) -> None:
    """Wait until the engine has carried out what it was told so far."""
    await llm.abort("nobody")


@pytest.mark.slow
def test_fifty_callers_with_random_aborts_get_what_each_would_get_alone(model: Any) -> None:
    rng = np.random.default_rng(0)
    texts = prompts(tuple(int(n) for n in rng.integers(1, 40, CALLERS)))
    sampling = [params(1, temperature=float(i % 2), max_tokens=int(rng.integers(1, 16)))[0] for i in range(CALLERS)]
    fates = rng.choice(["finish", "finish", "abort", "cancel", "leave"], CALLERS)
    plugins = {"stub": stub_plugin(Garbage(VOCAB))}
    with LLM(hf_model=model, plugins=plugins, **STUB) as llm:
        alone = [llm.generate([text], one)[0].outputs[0] for text, one in zip(texts, sampling, strict=True)]

    async def caller(llm: AsyncLLM, i: int) -> Any:
        last = None
        async for output in llm.generate(texts[i], sampling[i], f"caller {i}"):
            last = output
            if fates[i] == "leave":
                break
            if fates[i] == "abort":
                await llm.abort(f"caller {i}")
            if fates[i] == "cancel":
                await asyncio.Event().wait()
        return last

    async def main() -> list[Any]:
        async with engine(model, plugins=plugins, max_num_seqs=16, **STUB) as llm:
            tasks = [asyncio.create_task(caller(llm, i)) for i in range(CALLERS)]
            await asyncio.wait([tasks[i] for i in range(CALLERS) if fates[i] != "cancel"])
            for task in tasks:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            await freed(llm)
            assert_nothing_is_left(llm)
        return found

    for i, last in enumerate(asyncio.run(main())):
        if fates[i] == "cancel":
            assert isinstance(last, asyncio.CancelledError)
            continue
        ids = last.outputs[0].token_ids
        assert ids == alone[i].token_ids[: len(ids)], fates[i]
        if fates[i] == "finish":
            assert last.finished
            assert (ids, last.outputs[0].finish_reason) == (alone[i].token_ids, "length")


def test_snapshots_grow_and_the_last_one_says_that_it_is_the_last(model: Any) -> None:
    async def main() -> list[Any]:
        async with engine(model) as llm:
            return [output async for output in llm.generate([5, 6], params(1, max_tokens=9, n=2)[0], "a")]

    snapshots = asyncio.run(main())
    assert [snapshot.finished for snapshot in snapshots] == [False] * (len(snapshots) - 1) + [True]
    for sample in range(2):
        lengths = [len(snapshot.outputs[sample].token_ids) for snapshot in snapshots]
        assert lengths == sorted(lengths)
        assert lengths[-1] == 9


def test_a_slow_consumer_gets_merged_snapshots_and_the_last_one(model: Any) -> None:
    async def main() -> list[Any]:
        async with engine(model) as llm:
            answers = llm.generate([5, 6], params(1, max_tokens=30)[0], "slow")
            first = await anext(answers)
            while llm._worker._running:  # the consumer does nothing until the request is through
                await asyncio.sleep(0)
            return [first] + [output async for output in answers]

    snapshots = asyncio.run(main())
    assert len(snapshots) == 2
    assert snapshots[-1].finished and len(snapshots[-1].outputs[0].token_ids) == 30


def test_an_abort_ends_the_request_with_what_it_has_and_frees_it(model: Any) -> None:
    async def main() -> None:
        async with engine(model) as llm:
            answers = [llm.generate([5, 6], LONG, name) for name in "abc"]
            firsts = [await anext(one) for one in answers]
            await llm.abort(["a", "b"])
            assert list(llm._worker._running) == ["c"]
            for first, one in zip(firsts[:2], answers, strict=False):
                (*_, last) = [output async for output in one]
                assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
                assert len(first.outputs[0].token_ids) <= len(last.outputs[0].token_ids) < 400
            await llm.abort("c")
            assert_nothing_is_left(llm)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancel", "break", "aclose", "never begun"])
def test_a_request_whose_consumer_has_gone_is_freed(how: str, model: Any) -> None:
    async def consume(llm: AsyncLLM) -> None:
        answers = llm.generate([5, 6], LONG, "gone")
        if how == "never begun":
            return
        async for _ in answers:
            if how == "break":
                break
            if how == "aclose":
                await answers.aclose()  # type: ignore[attr-defined]
                return
            await asyncio.Event().wait()

    async def main() -> None:
        async with engine(model) as llm:
            task = asyncio.create_task(consume(llm))
            if how == "cancel":
                while not llm._worker._running:
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await freed(llm)
            assert_nothing_is_left(llm)
            assert (await last_of(llm, [5, 6], SHORT, "gone")).finished, "its id is free again"

    asyncio.run(main())


def test_a_running_request_id_is_refused_and_bad_requests_harm_nobody(model: Any) -> None:
    async def main() -> None:
        async with engine(model) as llm:
            good = llm.generate([5, 6], LONG, "same")
            await anext(good)
            with pytest.raises(RequestError, match="'same' is running already"):
                await last_of(llm, [5], SHORT, "same")
            for bad in ([[5], [6]], [VOCAB + 5], 3.5):
                with pytest.raises(RequestError):
                    await last_of(llm, bad, SHORT, "bad")
            assert (await anext(good)).outputs[0].finish_reason is None
            await llm.abort("same")
            assert_nothing_is_left(llm)

    asyncio.run(main())


class Raising(Garbage):
    """Drafts, until it is told to raise."""

    broken = False

    def propose(self, batch: Any) -> Any:
        if self.broken:
            raise OSError("out of luck")
        return super().propose(batch)


def test_an_error_in_a_step_reaches_every_caller_once_and_later_requests_run(model: Any) -> None:
    stub = Raising(VOCAB)

    async def main() -> None:
        async with engine(model, plugins={"stub": stub_plugin(stub)}, strict=True, **STUB) as llm:
            answers = [llm.generate([5, i], LONG, str(i)) for i in range(3)]
            for one in answers:
                await anext(one)
            stub.broken = True
            for one in answers:
                with pytest.raises(OSError, match="out of luck"):
                    async for _ in one:
                        pass
                assert [output async for output in one] == []
            assert_nothing_is_left(llm)
            stub.broken = False
            assert len((await last_of(llm, [5, 6], SHORT, "later")).outputs[0].token_ids) == 4

    asyncio.run(main())


def test_closing_ends_waiting_callers_with_abort_and_refuses_later_ones(model: Any) -> None:
    async def main() -> None:
        llm = engine(model)
        waiting = [asyncio.create_task(last_of(llm, [5, i], LONG, str(i))) for i in range(3)]
        while len(llm._worker._running) < 3:
            await asyncio.sleep(0)
        await asyncio.to_thread(llm.close)
        for last in await asyncio.gather(*waiting):
            assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
        assert llm.llm.closed and not llm.is_running
        with pytest.raises(RequestError, match="this AsyncLLM is closed"):
            await last_of(llm, [5], SHORT, "late")
        await llm.abort("late")
        llm.close()

    asyncio.run(main())


def test_event_loops_may_come_one_after_the_other_and_one_may_end_while_it_waits(model: Any) -> None:
    llm = engine(model)

    async def leave_early() -> Any:
        return await anext(llm.generate([5, 6], LONG, "early"))

    first = asyncio.run(leave_early())
    second = asyncio.run(last_of(llm, [5, 6], SHORT, "later"))
    assert second.outputs[0].token_ids[:1] == first.outputs[0].token_ids[:1]
    llm.close()
    assert_nothing_is_left(llm)


def test_a_loaded_engine_is_lent_and_serves_its_own_caller_meanwhile(model: Any) -> None:
    with LLM(hf_model=model, decode_width=8) as llm:
        alone = [llm.generate([[5, i]], params(1)[0])[0].outputs[0].token_ids for i in range(4)]

        async def main() -> list[Any]:
            async with AsyncLLM.over(llm) as served:
                direct = asyncio.to_thread(lambda: llm.generate([[5, 3]], params(1)[0])[0])
                tasks = [last_of(served, [5, i], params(1)[0], str(i)) for i in range(3)]
                return await asyncio.gather(*tasks, direct)

        assert [output.outputs[0].token_ids for output in asyncio.run(main())] == alone
        assert not llm.closed
        assert llm.generate([[5, 0]], params(1)[0])[0].outputs[0].token_ids == alone[0]


def test_the_thread_sleeps_without_requests_and_ends_with_the_engine(model: Any) -> None:
    steps = []
    llm = engine(model)
    step = llm.llm._engine.stepper.step
    llm.llm._engine.stepper.step = lambda: steps.append(None) or step()  # type: ignore[method-assign, func-returns-value]
    asyncio.run(last_of(llm, [5, 6], SHORT, "a"))
    made = len(steps)
    asyncio.run(freed(llm))
    asyncio.run(freed(llm))
    assert len(steps) == made >= 4
    worker = llm._worker._thread
    del llm
    worker.join(timeout=60)
    assert not worker.is_alive() and worker is not threading.current_thread()
