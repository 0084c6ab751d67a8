"""What a request asks of speculation in `extra_args`: off, a smaller k, and options of its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import Field
from runs import ids_of, params, prompts, run, target

from specdec_core import hookimpl
from specdec_core.config.options import RequestOptions
from specdec_core.draft import Draft
from specdec_core.errors import RequestError
from specdec_core.traits import MethodTraits
from specdec_engine import LLM, SamplingParams
from specdec_testing.stubs import Perfect, Stub, StubPlugin, stub_plugin
from specdec_testing.trees import PerfectTree

VOCAB = 128


def asking(count: int, **specdec: Any) -> list[SamplingParams]:
    return params(count, 0.8, extra_args={"specdec": specdec})


def without_extra(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, extra_args=None)


@pytest.mark.parametrize("rows", ["none", "last", "all"])
def test_a_request_that_is_off_is_decoded_plainly_while_others_speculate(rows: Any) -> None:
    model, texts = target("llama"), prompts((9, 20, 14, 30))
    wanted = [*asking(1, off=True), *params(3, 0.8)[1:2], *asking(1, off=True), *params(1, 0.0)]
    plain = run(model, texts, [without_extra(p) for p in wanted])
    stub = Perfect.of_run(texts, plain)
    stub.traits = MethodTraits(rows=rows, hidden=rows == "all")
    spec = run(model, texts, wanted, stub)
    assert ids_of(spec) == ids_of(plain)
    assert [result.metrics.drafted > 0 for result in spec] == [False, True, False, True]
    assert sorted(stub.started) == ["1-0", "3-0"], "the proposer never hears of the others"
    reasons = [result.outputs[0].plain_reason for result in spec]
    assert reasons == ["the request asked for it", None, "the request asked for it", None]


class Noting(Stub):
    """Drafts all it may and notes the most for each request."""

    def __init__(self) -> None:
        super().__init__()
        self.most: dict[str, int] = {}

    def propose(self, batch: Any) -> Draft:
        for i in range(len(batch)):
            name = batch.request(i).id
            self.most[name] = max(self.most.get(name, 0), int(batch.max_draft[i]))
        return super().propose(batch)

    def row(self, batch: Any, i: int) -> list[int]:
        return [5] * int(batch.max_draft[i])


def test_a_request_may_ask_for_fewer_drafts_than_the_configuration() -> None:
    stub = Noting()
    wanted = [*asking(1, num_speculative_tokens=2), *params(1), *asking(1, num_speculative_tokens=4, off=False)]
    model, texts = target("llama"), prompts((9, 20, 14))
    spec = run(model, texts, wanted, stub, k=4)
    assert stub.most == {"0-0": 2, "1-0": 4, "2-0": 4}
    assert ids_of(spec) == ids_of(run(model, texts, [without_extra(p) for p in wanted]))


def test_a_smaller_k_counts_the_nodes_of_a_tree() -> None:
    model, texts = target("llama"), prompts((9, 20))
    wanted = [*asking(1, num_speculative_tokens=3), *params(2)[1:]]
    plain = run(model, texts, [without_extra(p) for p in wanted])
    spec = run(model, texts, wanted, PerfectTree.of_run(texts, plain, VOCAB), k=8)
    assert ids_of(spec) == ids_of(plain)
    few, many = (result.metrics for result in spec)
    assert few.drafted <= 3 * few.steps and many.drafted > 4 * many.steps


def test_drafts_that_one_request_leaves_are_there_for_the_others() -> None:
    stub = Noting()
    wanted = [*asking(1, off=True), *params(1), *asking(1, off=True), *params(1)]
    run(target("llama"), prompts((9, 20, 14, 11)), wanted, stub, k=4, config={"max_step_tokens": 8})
    assert stub.most == {"1-0": 4, "3-0": 4}


class Tone(RequestOptions):
    """What the method below takes from a request."""

    tone: str = Field("dry", description="How it sounds.")


class TonePlugin(StubPlugin):
    @hookimpl
    def specdec_request_options(self, method: str) -> type[RequestOptions]:
        return Tone


class Listening(Stub):
    """Notes what requests asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def start(self, request: Any) -> None:
        super().start(request)
        self.heard.append(request.extra)


def test_the_methods_own_options_reach_it_beside_those_of_every_method() -> None:
    stub = Listening()
    plugin = TonePlugin(stub, MethodTraits(), None)
    config = {"method": "stub", "num_speculative_tokens": 3}
    wanted = [*asking(1, tone="warm", num_speculative_tokens=1), *params(1), *asking(1, num_speculative_tokens=2)]
    with LLM(hf_model=target("llama"), speculative_config=config, plugins={"stub": plugin}, strict=True) as llm:
        llm.generate(prompts((9, 20, 14)), wanted)
        with pytest.raises(RequestError, match="tune"):
            llm.generate([5, 6], asking(1, tune="warm")[0])
    assert stub.heard == [Tone(tone="warm"), None, None]


WRONG: dict[str, tuple[Any, str]] = {
    "larger k": ({"num_speculative_tokens": 5}, r"'num_speculative_tokens'\]=5 .*1 \.\. 4"),
    "k of zero": ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
    "k of text": ({"num_speculative_tokens": "2"}, "num_speculative_tokens"),
    "k of true": ({"num_speculative_tokens": True}, "num_speculative_tokens"),
    "off of text": ({"off": "yes"}, "off"),
    "unknown": ({"of": True}, "of"),
    "no mapping": (["off"], "mapping"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_hold_is_refused_by_name(case: str) -> None:
    specdec, expected = WRONG[case]
    config = {"method": "stub", "num_speculative_tokens": 4}
    with LLM(hf_model=target("llama"), speculative_config=config, plugins={"stub": stub_plugin(Noting())}) as llm:
        with pytest.raises(RequestError, match=expected):
            llm.generate([[5, 6], [7]], [SamplingParams(), SamplingParams(extra_args={"specdec": specdec})])
        assert not llm._engine.scheduler.waiting


def test_an_engine_without_speculation_takes_off_and_nothing_else() -> None:
    with LLM(hf_model=target("llama")) as llm:
        plain = llm.generate([[5, 6]], params(1, 0.8))
        off = llm.generate([[5, 6]], asking(1, off=True))
        assert ids_of(off) == ids_of(plain) and off[0].outputs[0].plain_reason is None
        wrong: tuple[Mapping[str, Any], ...] = ({"num_speculative_tokens": 2}, {"off": False}, {"off": True, "x": 1})
        for specdec in wrong:
            with pytest.raises(RequestError, match="no speculative_config"):
                llm.generate([[5, 6]], asking(1, **specdec)[0])
