"""Steps at a smaller number of drafts: what is cut from a run at a larger one is what a run at the smaller one does."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_core.draft import BatchView
from specdec_engine import LLM, SamplingParams
from specdec_engine.tune.shorter import Seen, at_limit
from specdec_engine.tune.tracing import run_traced
from specdec_testing.stubs import Stub, stub_plugin
from specdec_testing.targets import tiny_target

PROMPT = list(range(3, 23))


class RightButSome(Stub):
    """Drafts the rest of a text of which some places are wrong, from wherever the request is in it."""

    def __init__(self, text: list[int]) -> None:
        super().__init__()
        self.text = text

    def row(self, batch: BatchView, i: int) -> list[int]:
        request = batch.request(i)
        return self.text[len(request.tokens) - request.prompt_len :]


def counts(steps: list[Seen]) -> list[tuple[int, int, int]]:
    return [(step.drafted, step.accepted, step.kept) for step in steps]


def random_steps(rng: np.random.Generator, measured: int) -> list[Seen]:
    steps = []
    for _ in range(int(rng.integers(0, 12))):
        drafted = int(rng.integers(0, measured + 1))
        accepted = int(rng.integers(0, drafted + 1))
        steps.append(Seen(drafted, accepted, accepted + 1))
    return steps


def test_ids_are_neither_lost_nor_made_and_no_step_has_more_drafts_than_the_limit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        measured = int(rng.integers(1, 9))
        limit = int(rng.integers(1, measured + 1))
        steps = random_steps(rng, measured)
        cut = at_limit(steps, limit, measured)
        assert sum(step.kept for step in cut) == sum(step.kept for step in steps)
        assert all(0 <= step.accepted <= step.drafted <= limit and step.kept == step.accepted + 1 for step in cut)
        assert len(cut) >= len(steps) - sum(step.accepted == step.drafted == measured for step in steps)


def test_a_limit_that_was_measured_or_is_larger_leaves_the_steps_as_they_are() -> None:
    steps = [Seen(4, 4, 5), Seen(0, 0, 1), Seen(4, 1, 2)]
    assert at_limit(steps, 4, 4) == steps
    assert at_limit(steps, 9, 4) == steps


def test_what_was_accepted_in_one_step_is_accepted_in_several() -> None:
    # Five ids of six drafts, the sixth wrong: with two drafts a step these are two whole steps, then one wrong draft.
    assert counts(at_limit([Seen(6, 5, 6)], 2, 8)) == [(2, 2, 3), (2, 2, 3)]
    assert counts(at_limit([Seen(6, 3, 4)], 2, 8)) == [(2, 2, 3), (2, 0, 1)]


def test_a_step_that_was_accepted_whole_goes_on_in_the_next_one() -> None:
    # The drafter knew all of 5 + 2 ids; only then was it wrong.
    assert counts(at_limit([Seen(4, 4, 5), Seen(4, 1, 2)], 2, 4)) == [(2, 2, 3), (2, 2, 3), (2, 0, 1)]


def test_where_nothing_was_drafted_nothing_is_at_any_limit() -> None:
    assert counts(at_limit([Seen(0, 0, 1)] * 3, 1, 8)) == [(0, 0, 1)] * 3


@pytest.mark.parametrize("limit", [3, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (1, 2, 5))])
def test_steps_cut_from_a_run_are_those_of_a_run_at_that_limit(limit: int) -> None:
    """With a drafter that is wrong at fixed places of the text, wherever it is asked."""
    model = tiny_target("llama", eos_token_id=None)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with LLM(hf_model=model, kv_cache_tokens=256) as plain:
        ids = list(plain.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)[0].outputs[0].token_ids)
    text = [(token + 1) % 50 if place % 11 == 4 else token for place, token in enumerate(ids)]

    def run(k: int) -> list[Seen]:
        stub = stub_plugin(RightButSome(text))
        config = {"method": "stub", "num_speculative_tokens": k}
        with LLM(hf_model=model, speculative_config=config, plugins={"stub": stub}, kv_cache_tokens=256) as llm:
            _, (trace,) = run_traced(llm, [PROMPT], [params], k)
        assert trace.tokens == len(ids)
        return list(trace.steps)

    expected = run(limit)
    assert max(step.accepted for step in expected) == limit
    found = at_limit(run(8), limit, 8)
    assert [step.kept for step in found] == [step.kept for step in expected]
    # The last step's drafts end with the text, of which the longer run tells no more.
    assert counts(found)[:-1] == counts(expected)[:-1]
