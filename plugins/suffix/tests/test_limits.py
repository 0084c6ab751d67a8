"""Limits of ids and bytes: what is held stays flat, the oldest ids leave first, and what stays drafts as before."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_plugin_suffix.cache import SuffixCache

BUDGET = 3_000


def run(cache, rng, requests, size, look):
    """Requests of `size` ids each, a few running at a time, each extended in small steps."""
    phrases = [rng.integers(0, 300, rng.integers(3, 20), np.int32) for _ in range(60)]
    running = []
    for i in range(requests):
        cache.start(i, phrases[i % 60])
        running.append((i, np.concatenate([phrases[j] for j in rng.integers(0, 60, size)])[:size]))
        for name, text in running:
            half = len(text) // 2
            cache.extend(name, text[:half] if name == i else text[half:])
            look()
        if len(running) == 3:
            cache.stop(running.pop(0)[0])
            look()
    for name, _ in running:
        cache.stop(name)


def test_ids_nodes_and_bytes_are_flat_under_a_limit_of_ids(compiled):
    """docs/bug-reports.md, row 93."""
    cache = SuffixCache(24, None, max_tokens=BUDGET, forest=compiled)
    figures = []
    run(cache, np.random.default_rng(0), 400, 100, lambda: figures.append(cache.stats()))
    late = figures[len(figures) // 4 :]
    assert sum(figure.tokens for figure in figures) > 0
    assert all(figure.tokens <= BUDGET for figure in figures)
    assert min(figure.tokens for figure in late) > BUDGET - 200, "no more leaves than has to"
    assert max(figure.nodes for figure in late) < 1.15 * min(figure.nodes for figure in late)
    assert len({figure.memory_bytes for figure in late}) == 1
    assert max(figure.responses for figure in late) <= BUDGET // 100 + 5


def test_bytes_in_use_stay_below_a_limit_of_bytes(compiled):
    limit = 400_000
    cache = SuffixCache(24, None, max_bytes=limit, forest=compiled)
    figures = []
    run(cache, np.random.default_rng(1), 300, 100, lambda: figures.append(cache.stats()))
    late = figures[len(figures) // 4 :]
    assert all(figure.used_bytes <= limit for figure in figures)
    assert min(figure.used_bytes for figure in late) > 0.9 * limit
    assert max(figure.memory_bytes for figure in late) < 3 * limit


def test_a_limit_of_requests_alone_keeps_that_many(compiled):
    cache = SuffixCache(24, 4, forest=compiled)
    figures = []
    run(cache, np.random.default_rng(2), 200, 50, lambda: figures.append(cache.stats()))
    late = figures[20:]
    assert {figure.responses for figure in late} == {4}
    assert max(figure.tokens for figure in late) <= 4 * 75
    assert len({figure.memory_bytes for figure in late}) == 1


def test_the_oldest_ids_of_the_oldest_response_leave_first(forest):
    cache = SuffixCache(8, None, max_tokens=12, forest=forest)
    for name, text in (("a", [1, 2, 3, 4, 5]), ("b", [11, 12, 13, 14]), ("c", [21, 22, 23])):
        cache.start(name, [0])
        cache.extend(name, text)
    cache.stop("b")
    cache.extend("c", [24, 25])
    assert cache.shared() == ["a", "b", "c"]
    assert set(cache.counts()) >= {(3, 4, 5), (11, 12, 13, 14), (21, 22, 23, 24, 25)}
    assert (2,) not in cache.counts()
    cache.extend("a", [6])
    assert {string for string in cache.counts() if len(string) == 3 and string[0] < 10} == {(4, 5, 6)}
    cache.extend("c", [26, 27, 28])
    assert cache.shared() == ["b", "c"], "a has lost all its ids, though it is running"
    cache.extend("a", [7, 8, 9])
    assert cache.stats().tokens == 12
    assert (7,) not in cache.counts()


def test_after_ids_have_left_the_drafts_are_those_of_a_cache_that_never_saw_them(forest):
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 6, 40).tolist() for _ in range(30)]
    limited, fresh = SuffixCache(8, None, max_tokens=100, forest=forest), SuffixCache(8, None, forest=forest)
    for i, text in enumerate(texts):
        limited.start(i, [9])
        limited.extend(i, text)
        limited.stop(i)
    kept = [texts[27][20:], *texts[28:]]
    for i, text in enumerate(kept):
        fresh.start(i, [9])
        fresh.extend(i, text)
    assert limited.counts() == fresh.counts()


def test_an_update_larger_than_the_limit_leaves_its_own_end(forest):
    cache = SuffixCache(4, None, max_tokens=5, forest=forest)
    cache.start("a", [0])
    cache.extend("a", list(range(1, 21)))
    assert cache.stats().tokens == 5
    assert {string for string in cache.counts() if len(string) == 4} == {(16, 17, 18, 19), (17, 18, 19, 20)}
    cache.extend("a", [21])
    assert cache.stats().tokens == 5
    cache.start("b", [0], response=[19])
    assert cache.speculate("b").tokens.tolist() == [20]
    cache.extend("b", [20])
    assert cache.speculate("b").tokens.tolist() == [21]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_of_almost_nothing_holds(limit, forest):
    cache = SuffixCache(4, None, max_tokens=limit, forest=forest)
    for i in range(20):
        cache.start(i, [1, 2, 3])
        cache.extend(i, [i % 3, i % 2])
        cache.speculate(i)
        cache.extend(i, [])
        assert cache.stats().tokens <= limit
        if i % 2:
            cache.stop(i)
    assert cache.stats().responses <= limit + 10
