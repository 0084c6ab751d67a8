"""A draft model equal to the target: whatever happens to a request, every one of its drafts is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_model_folders import drafter, keys, saved

from specdec_core.draft import BatchView
from specdec_core.noise import Noise
from specdec_engine import LLM, SamplingParams
from specdec_plugin_draft_model import running
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.identity import assert_same_output
from specdec_testing.targets import tiny_target

TARGET = tiny_target("llama", max_position_embeddings=1024)
K = 4


@pytest.fixture
def twin(tmp_path: Path) -> str:
    """The target's own weights as a checkpoint."""
    return saved(tmp_path / "twin", TARGET)


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(3, 128, length).tolist() for length in lengths]


def params(count: int, max_tokens: int = 24, **more: Any) -> list[SamplingParams]:
    common = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **more}
    return [SamplingParams(seed=i, **common) for i in range(count)]


def accepted(
    model: str, texts: Sequence[list[int]], sampling: Any, llm: dict[str, Any] | None = None, **config: Any
) -> Any:
    """Generate with the twin; every draft is accepted and the text is the plain one. Returns the results."""
    with LLM(hf_model=TARGET, **(llm or {})) as engine:
        plain = engine.generate(list(texts), sampling)
    with LLM(hf_model=TARGET, speculative_config=keys(model, K, **config), strict=True, **(llm or {})) as engine:
        results = engine.generate(list(texts), sampling)
        metrics = engine.get_metrics()
    assert_same_output(plain, results)
    assert metrics.accepted == metrics.drafted > 0
    return results


def test_everything_is_accepted_over_many_rounds_and_lengths(twin: str) -> None:
    results = accepted(twin, prompts(1, 40, 9, 100), params(4))
    for result in results:
        assert result.metrics.emitted == 23, "the first id comes with the prompt"
        assert result.metrics.steps == 5, "each of the others brings a whole draft and one id more"


def test_everything_is_accepted_after_speculation_was_off_for_a_while_row_77(twin: str) -> None:
    """A long request runs beside short ones; while there are many, nothing is drafted, and then it is caught up."""
    lengths = [params(1, 60)[0], *params(5, 12)]
    (long, *_) = accepted(twin, prompts(30, 3, 4, 5, 6, 7), lengths, disable_by_batch_size=3)
    assert 15 <= long.metrics.steps <= 25
    assert long.metrics.accepted >= 35, "it drafts again after its neighbours have left"


def test_everything_is_accepted_after_preemption(twin: str) -> None:
    """Two pages short of what three requests need together, so that one is put off and run anew."""
    sampling = params(3, 60)
    with LLM(hf_model=TARGET, kv_cache_tokens=224, speculative_config=keys(twin, K), strict=True) as engine:
        closed: list[str] = []
        inner = engine._engine.runner._proposer  # type: ignore[union-attr]
        finish = inner.finish
        inner.finish = lambda request, reason: (closed.append(reason), finish(request, reason))  # type: ignore[method-assign]
        engine.generate(prompts(40, 40, 40), sampling)
        assert "preempted" in closed
        metrics = engine.get_metrics()
    assert metrics.accepted == metrics.drafted > 100


def test_everything_is_accepted_with_prompts_in_chunks_and_several_samples(twin: str) -> None:
    accepted(twin, prompts(90, 33), params(2), {"prefill_chunk_size": 16})
    results = accepted(twin, prompts(21), params(1, n=3, temperature=0.9), draft_sample_method="probabilistic",
                       rejection_sample_method="coupled")  # fmt: skip
    assert len({tuple(sample.token_ids) for sample in results[0].outputs}) == 3


@pytest.mark.parametrize("verifier", ["standard", "block"])
def test_drawn_drafts_of_the_targets_own_distribution_are_accepted(verifier: str, twin: str) -> None:
    config = keys(twin, K, draft_sample_method="probabilistic", rejection_sample_method=verifier)
    with LLM(hf_model=TARGET, speculative_config=config, strict=True) as engine:
        engine.generate(prompts(8, 30), params(2, temperature=1.0))
        metrics = engine.get_metrics()
    assert metrics.accepted == metrics.drafted > 30


def test_a_long_prompt_is_taken_in_over_several_calls_and_decoding_goes_on_meanwhile(
    twin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call runs more ids of a request than the limit; until all have run the request has no drafts."""
    monkeypatch.setattr(running, "CATCH_UP_ROWS", 64)
    rows: list[int] = []
    forward = running.Runner._forward

    def counted(self: Any, pieces: Any) -> Any:
        rows.extend(len(piece.ids) for piece in pieces)
        return forward(self, pieces)

    monkeypatch.setattr(running.Runner, "_forward", counted)
    long, short = accepted(twin, prompts(300, 10), params(2, 30))
    assert max(rows) == 64
    assert short.metrics.empty == 0
    assert long.metrics.empty == 4, "300 ids and the first one more, 64 at a time"
    assert long.metrics.accepted > 15


def test_many_prompts_are_split_into_forwards_of_bounded_size(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "FORWARD_ROWS", 50)
    accepted(twin, prompts(30, 30, 30, 70), params(4))


class Host:
    """Two requests led by hand, so that the drafter's cache can be looked at between two calls."""

    def __init__(self, model: str) -> None:
        self.proposer, _ = drafter(model, FakeTarget(TARGET), K)
        self.views = [FakeRequest("a", prompts(7)[0]), FakeRequest("b", prompts(11)[0])]
        for view in self.views:
            self.proposer.start(view)
        self.ran: list[int] = []  # ids in each piece of the last call's first forward
        runner: Any = self.proposer._runner  # type: ignore[attr-defined]
        forward = runner._forward
        runner._forward = lambda pieces: (self._note(pieces), forward(pieces))[1]

    def _note(self, pieces: Any) -> None:
        self.ran = [len(piece.ids) for piece in pieces]

    def propose(self, limits: Sequence[int] = (K, K)) -> list[list[int]]:
        lengths = np.array([len(view.tokens) for view in self.views], np.int32)
        batch = BatchView(
            requests=self.views,
            run_len=lengths - 1,
            newest_known=np.ones(2, np.bool_),
            max_draft=np.array(limits, np.int32),
            noise=Noise(np.zeros(2, np.uint64), lengths, np.zeros(2, np.int32)),
        )
        draft = self.proposer.propose(batch)
        ends = np.cumsum([0, *(draft.lengths or ())])
        return [draft.tokens[ends[i] : ends[i + 1]].tolist() for i in range(2)]

    def rows(self, view: FakeRequest) -> int:
        return self.proposer._runner.rows(view.id)  # type: ignore[attr-defined]


def test_the_cache_holds_the_committed_ids_but_the_newest_after_every_rejection_row_51(twin: str) -> None:
    host = Host(twin)
    rng = np.random.default_rng(0)
    for _ in range(10):
        known = [len(view.tokens) for view in host.views]
        drafts = host.propose()
        for view, before, draft in zip(host.views, known, drafts, strict=True):
            assert host.rows(view) == before + K - 1, "all ids, and the drafts but the last, which was not run"
            view.extend([*draft[:2], int(rng.integers(3, 128))])
        again = host.propose((0, 0))
        assert again == [[], []]
        assert host.ran == [1, 1], "two accepted drafts have their rows already"
        for view in host.views:
            assert host.rows(view) == len(view.tokens)
            assert host.proposer._runner._requests[view.id].ran == view.tokens.tolist()  # type: ignore[attr-defined]


def test_asking_twice_with_nothing_new_gives_the_same_drafts(twin: str) -> None:
    host = Host(twin)
    assert host.propose() == host.propose()
    assert host.propose((K, 0)) == [host.propose()[0], []]


def test_rows_are_given_back_when_requests_end_row_56(twin: str) -> None:
    """Five prompts of 200 ids, one after the other, in room for two: drafts are made for the fifth as for the first."""
    with LLM(
        hf_model=TARGET, kv_cache_tokens=512, max_num_seqs=2, speculative_config=keys(twin, K), strict=True
    ) as engine:
        for i in range(5):
            (result,) = engine.generate(prompts(200 + i), params(1))
            assert result.metrics.accepted == result.metrics.drafted > 15
        cache = engine._engine.runner._proposer._runner._cache  # type: ignore[union-attr]
        assert cache.arena.pages_in_use == 0
