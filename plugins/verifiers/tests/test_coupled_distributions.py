"""The distribution of `coupled` is the target's, at every place of an emitted block, whatever the drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_core.draft import Draft
from specdec_engine import LLM, SamplingParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Garbage, Soft, stub_plugin
from specdec_testing.table import random_table, table_target

VOCAB = 6
ROWS = 60_000
TABLE = random_table(VOCAB, seed=11)
NEWEST = np.arange(ROWS) % VOCAB
DRAFTERS = {"right table": TABLE, "wrong table": random_table(VOCAB, seed=12, concentration=0.5), "one id": None}


def drafted(rng: np.random.Generator, table: Any, before: int, depth: int) -> list[int]:
    """A chain drawn from a table, or of id 2 alone."""
    chain = []
    for _ in range(depth):
        before = 2 if table is None else int(np.searchsorted(np.cumsum(table[before]), rng.random()))
        chain.append(min(before, VOCAB - 1))
        before = chain[-1]
    return chain


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_chains_of_several_depths_emit_the_tables_distribution_at_every_place(drafter, emit, transitions):
    rng = np.random.default_rng(7)
    depths = rng.integers(0, 5, ROWS)
    chains = [drafted(rng, DRAFTERS[drafter], b, d) for b, d in zip(NEWEST.tolist(), depths.tolist(), strict=True)]
    verdict = emit(TABLE, NEWEST, Draft.of(chains))
    counts = transitions(verdict, NEWEST.tolist(), VOCAB, 5)
    assert counts[0].sum() == ROWS
    for place, seen in enumerate(counts):
        if seen.sum() > 500:
            assert_follows(seen, TABLE)
        else:
            assert place > 1, "at least two places have enough draws to say anything"


def test_trees_emit_the_tables_distribution_at_every_depth(emit, transitions):
    rng = np.random.default_rng(8)
    parents = np.array([-1, -1, 0, 0, 1, 2], np.int32)
    siblings = [(0, 1), (2, 3)]  # drawn without repetition, as a tree drafter would
    tokens = rng.integers(0, VOCAB, (ROWS, len(parents)), dtype=np.int32)
    for a, b in siblings:
        tokens[:, b] = (tokens[:, a] + rng.integers(1, VOCAB, ROWS)) % VOCAB
    draft = Draft([len(parents)] * ROWS, tokens.ravel(), parents=np.tile(parents, ROWS))
    verdict = emit(TABLE, NEWEST, draft)
    for seen in transitions(verdict, NEWEST.tolist(), VOCAB, 4)[:3]:
        assert_follows(seen, TABLE)
    assert verdict.accepted.max() == 3


class AcceptsOneInFifty:
    """A broken rule, to see these tests fail: one first draft in fifty stands although it is not the draw."""

    def verify(self, draft: Any, logits: Any, noise: Any, target_draws: Any, greedy: Any) -> Any:
        """Overwrite some emitted first ids by the draft."""
        from specdec_plugin_verifiers.coupled import Coupled

        verdict = Coupled().verify(draft, logits, noise, target_draws, greedy)
        starts = np.cumsum(verdict.accepted + 1) - verdict.accepted - 1
        firsts = np.cumsum(draft.lengths) - np.asarray(draft.lengths)
        for row in range(0, len(starts), 50):
            verdict.emitted[starts[row]] = draft.tokens[firsts[row]]
        return verdict


def test_these_checks_see_one_wrong_id_in_fifty(emit, transitions):
    rng = np.random.default_rng(9)
    wrong = DRAFTERS["wrong table"]
    draft = Draft.of([drafted(rng, wrong, before, 1) for before in NEWEST.tolist()])
    counts = transitions(emit(TABLE, NEWEST, draft, verifier=AcceptsOneInFifty()), NEWEST.tolist(), VOCAB, 2)
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_follows(counts[0], TABLE)


METHODS = {
    "ngram": ({"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}, None),
    "garbage": ({"method": "stub"}, Garbage(VOCAB, seed=2)),
    "fixed": ({"method": "stub"}, Fixed([1, 4, 2])),
    "soft": ({"method": "stub"}, Soft(random_table(VOCAB, seed=13), shared=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_through_the_engine_each_id_follows_the_one_before_it_by_the_table(method, temperature):
    config, stub = METHODS[method]
    seed = 100 * sorted(METHODS).index(method) + int(10 * temperature)
    sampling = [SamplingParams(temperature=temperature, seed=1000 * seed + i, max_tokens=240) for i in range(24)]
    with LLM(
        hf_model=table_target(TABLE),
        speculative_config={"num_speculative_tokens": 4, **config},
        plugins={} if stub is None else {"stub": stub_plugin(stub)},
        strict=True,
    ) as llm:
        results = llm.generate([[i % VOCAB] for i in range(24)], sampling)
        metrics = llm.get_metrics()
    counts = np.zeros((VOCAB, VOCAB), np.int64)
    for result in results:
        ids = result.prompt_token_ids + result.outputs[0].token_ids
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    assert counts.sum() == 24 * 240
    assert 0 < metrics.accepted < metrics.drafted
    distribution = TABLE ** (1 / temperature)
    assert_follows(counts, distribution / distribution.sum(axis=1, keepdims=True))
