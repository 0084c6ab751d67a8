"""Draws with parameters set follow the distribution that these mean; a row processed without its drafts does not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from definition import distribution_after
from runs import run

from specdec_engine import SamplingParams
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Fixed, Soft
from specdec_testing.table import random_table, table_target

VOCAB = 4
TABLE = random_table(VOCAB, seed=8)
MODEL = table_target(TABLE, num_layers=1, max_position_embeddings=32)
DRAWS = 1000
LENGTH = 3
# Each is a distribution of its own; all run side by side in one batch.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 2.5},
    "counts": {"frequency_penalty": -1.5, "presence_penalty": -0.6},
    "top_k": {"top_k": 2, "temperature": 1.5},
    "top_p": {"top_p": 0.7, "temperature": 0.8},
    "min_p": {"min_p": 0.4},
    "words": {"bad_words": [[1, 1], [3, 0], [2, 3, 3]], "logit_bias": {1: 1.0}},
    "late": {"min_tokens": 2, "stop_token_ids": [1], "presence_penalty": -0.8},
}
PROMPT = [0, 2]


def params(values: dict[str, Any], seed: int) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 1.0, "seed": seed, "n": DRAWS, "max_tokens": LENGTH, "ignore_eos": True, **values}
    )


def said(stub: Any, config: dict[str, Any] | None = None, cases: Any = CASES) -> dict[str, Any]:
    """How often each text of three ids was said in each case; a text that ended early counts with id 0 behind it."""
    wanted = [params(values, 40 + i) for i, values in enumerate(cases.values())]
    results = run(MODEL, [PROMPT] * len(cases), wanted, stub, k=2, config=config, max_num_seqs=4096)
    counts = {}
    for case, result in zip(cases, results, strict=True):
        counts[case] = np.zeros((VOCAB,) * LENGTH, np.int64)
        for sample in result.outputs:
            counts[case][tuple((sample.token_ids + [0] * LENGTH)[:LENGTH])] += 1
    assert stub is None or sum(result.metrics.accepted for result in results) > DRAWS / 4
    return counts


def distribution_of(values: dict[str, Any]) -> Any:
    """The distribution of whole texts, from the definition."""
    one, distribution = params(values, 0), np.zeros((VOCAB,) * LENGTH)
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        p, ended = 1.0, False
        for place, token in enumerate(text):
            if ended:
                p *= token == 0
                continue
            p *= distribution_after(TABLE, one, PROMPT, text[:place])[token]
            ended = place + 1 >= one.min_tokens and token in (one.stop_token_ids or ())
        distribution[text] += p
    assert abs(distribution.sum() - 1) < 1e-9
    return distribution


DISTRIBUTIONS = {case: distribution_of(values) for case, values in CASES.items()}
HISTORY = {name: CASES[name] for name in ("repetition", "counts", "words")}
RUNS: dict[str, tuple[Any, dict[str, Any] | None, dict[str, Any]]] = {
    "one-hot, coupled": (lambda: Fixed([1, 3]), None, CASES),
    "one-hot, standard": (lambda: Fixed([1, 3]), {"rejection_sample_method": "standard"}, HISTORY),
    "soft, standard": (lambda: Soft(random_table(VOCAB, seed=9)), {"rejection_sample_method": "standard"}, HISTORY),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS)
def test_texts_follow_the_distribution_of_their_parameters_in_one_batch(case: str) -> None:
    stub, config, cases = RUNS[case]
    for name, counts in said(stub(), config, cases).items():
        assert_follows(counts.reshape(1, -1), DISTRIBUTIONS[name].reshape(1, -1))


def test_these_checks_see_penalties_and_words_that_leave_out_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScheduledRows, "path", lambda self, row: np.empty(0, np.int32))
    for name, counts in said(Fixed([1, 3]), cases=HISTORY).items():
        with pytest.raises(AssertionError, match="do not follow the distribution"):
            assert_follows(counts.reshape(1, -1), DISTRIBUTIONS[name].reshape(1, -1))
