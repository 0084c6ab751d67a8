"""Soft drafts and a form: counts of what is said follow the target's distribution, masked and renormalised."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from words import lettered_tokenizer

from specdec_engine import LLM, SamplingParams
from specdec_engine.sampling_params import StructuredOutputsParams
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.stubs import Soft, stub_plugin
from specdec_testing.table import random_table, table_target

LETTERS = lettered_tokenizer(7, eos=0)
A, B, C, D, E, Z = range(1, 7)
LETTER = [LETTERS.decode([i]) for i in range(7)]
PAIRS = StructuredOutputsParams(
    regex="([{1}{2}][{3}{4}{5}])+{6}".format(*map(re.escape, LETTER))
)  # Z never comes: it has p = 0


def pair_distribution(table: np.ndarray) -> np.ndarray:
    """The distribution at even places and at odd ones, by the id before, [2 * 7, 7]."""
    distribution = np.concatenate([table, table]).copy()
    distribution[:7, [0, C, D, E, Z]] = 0
    distribution[7:, [0, A, B, Z]] = 0
    return distribution / distribution.sum(axis=1, keepdims=True)


def pair_counts(results: Any) -> np.ndarray:
    counts = np.zeros((14, 7), np.int64)
    for result in results:
        for sample in result.outputs:
            ids = [*result.prompt_token_ids[-1:], *sample.token_ids]
            for place, (before, token) in enumerate(itertools.pairwise(ids)):
                counts[7 * (place % 2) + before, token] += 1
    return counts


def soft_run(exact: bool) -> tuple[np.ndarray, np.ndarray, Any]:
    table = random_table(7, seed=5)
    table[:, Z] = 0
    table /= table.sum(axis=1, keepdims=True)
    target = table_target(table, num_layers=1, max_position_embeddings=64)
    config = {"method": "stub", "num_speculative_tokens": 3, "rejection_sample_method": "standard"}
    plugins = {"stub": stub_plugin(Soft(random_table(7, seed=6)))}
    with LLM(
        hf_model=target, tokenizer=LETTERS, speculative_config=config, plugins=plugins, max_num_seqs=100, strict=True
    ) as llm:
        llm._engine.stepper.speculation.exact = exact
        asked = SamplingParams(n=100, max_tokens=50, seed=3, structured_outputs=PAIRS)
        results = llm.generate([[A]], asked)
    return pair_counts(results), pair_distribution(table), results[0].metrics


@pytest.mark.slow
def test_soft_drafts_follow_the_masked_distribution_since_an_illegal_id_stays_to_be_rejected() -> None:
    counts, distribution, metrics = soft_run(exact=True)
    assert counts.sum() == 5_000
    assert metrics.cut > 250
    assert metrics.accepted > 250
    assert_follows(counts[counts.sum(axis=1) > 0], distribution[counts.sum(axis=1) > 0])


@pytest.mark.slow
def test_that_test_sees_the_bias_of_dropping_an_illegal_soft_id() -> None:
    counts, distribution, _ = soft_run(exact=False)
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_follows(counts[counts.sum(axis=1) > 0], distribution[counts.sum(axis=1) > 0])
