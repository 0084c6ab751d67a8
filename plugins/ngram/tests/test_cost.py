"""Cost: elementary steps and bytes grow with the ids, not with the range of n, nor with the context at each step."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_plugin_ngram.index import SPARE, Index

N = 50_000  # docs/bug-reports.md, row 90
RANGES = ((1, 1), (2, 4), (5, 5), (10, 500))


def repeating_text(n, vocab_size=5000, seed=0):
    """Return ids with a skewed distribution, into which long passages are copied again and again."""
    rng = np.random.default_rng(seed)
    ids = (rng.zipf(1.3, n) % vocab_size).astype(np.int32)
    for start in rng.integers(n // 10, n - 700, n // 2000):
        length, source = rng.integers(20, 700), rng.integers(0, start)
        ids[start : start + length] = ids[source : source + length].copy()
    return ids


TEXTS = {
    "repeating": repeating_text(N),
    "one id": np.full(N, 7, np.int32),
    "a short period": np.tile(np.arange(5, dtype=np.int32), N // 5),
    "two ids at random": np.random.default_rng(1).integers(0, 2, N).astype(np.int32),
    "no repeats": np.arange(N, dtype=np.int32),
}


def index_of(ids, low, high, latest=False):
    index = Index(low, high, latest=latest, vocab_size=2**31 - 1, room=len(ids))
    index.extend(ids)
    return index


@pytest.mark.parametrize("name", TEXTS)
def test_steps_are_linear_in_the_ids_whatever_the_range(name):
    ids = TEXTS[name]
    for low, high in RANGES:
        assert index_of(ids, low, high).steps <= 10 * N, (low, high)


@pytest.mark.parametrize("name", TEXTS)
def test_latest_adds_at_most_one_step_for_each_n_of_the_range(name):
    ids = TEXTS[name]
    for low, high in RANGES:
        extra = index_of(ids, low, high, latest=True).steps - index_of(ids, low, high).steps
        assert 0 <= extra <= N * (high - low + 1)
    # On text that is not one long repetition, few lengths differ in where they occurred.
    if name == "repeating":
        assert index_of(ids, 10, 500, latest=True).steps <= 20 * N


def test_a_decode_step_costs_the_same_after_a_long_context_as_after_a_short_one():
    ids = TEXTS["repeating"]
    index = Index(2, 500, latest=False, vocab_size=5000)
    out = np.empty(8, np.int32)
    costs = {}
    for size in range(1, N + 1):
        before = index.steps
        index.propose(ids[:size], 8, out, 0)
        costs[size] = index.steps - before
    early, late = (np.mean([costs[i] for i in range(a, a + 5000)]) for a in (5_000, N - 5_000))
    assert late < 2 * early
    assert late < 10


@pytest.mark.parametrize("name", TEXTS)
def test_memory_is_linear_in_the_ids_whatever_the_range(name):
    sizes = {index_of(TEXTS[name], low, high).memory_bytes() for low, high in RANGES}
    assert len(sizes) == 1
    assert sizes.pop() <= 80 * (N + N // 4 + SPARE)


def test_growing_id_by_id_ends_in_the_same_automaton_as_one_go():
    ids = TEXTS["repeating"][:20_000]
    at_once, grown = index_of(ids, 2, 40), Index(2, 40, latest=False, vocab_size=5000)
    for size in range(1, len(ids) + 1):
        grown.extend(ids[:size])
    used = int(at_once.meta[1])
    assert np.array_equal(at_once.states[:used], grown.states[:used])
    assert grown.memory_bytes() <= 2 * at_once.memory_bytes()
