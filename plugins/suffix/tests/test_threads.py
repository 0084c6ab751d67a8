"""Many threads on one cache (docs/bug-reports.md, row 94): the tries of one thread, no cross-talk, no leftovers."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from specdec_plugin_suffix.cache import SuffixCache
from specdec_plugin_suffix.forest import Rules

THREADS = 36


@pytest.fixture(autouse=True)
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def life(cache, thread, namespace, rounds=12):
    """One thread's requests: start, extend, draft, stop; every third one is aborted half way; ids come back."""
    rng = random.Random(thread)
    drafts = []
    for turn in range(rounds):
        name = f"{thread}-{turn % 5}"
        phrase = [rng.randrange(40) for _ in range(6)]
        cache.start(name, phrase * 2, namespace=namespace, rules=Rules(tree=thread % 2 == 1))
        for step in range(6):
            cache.extend(name, [phrase[(step + i) % 6] for i in range(rng.randint(1, 4))])
            found = cache.speculate(name)
            drafts.append((found.tokens.tolist(), found.parents.tolist(), found.score, found.matched))
            if turn % 3 == 2 and step == 3:
                break
        cache.stop(name)
        if turn % 4 == 3:
            cache.evict(name)
    return drafts


def together(cache, namespaces):
    """Run all lives at once; return each thread's drafts."""
    barrier = Barrier(THREADS)

    def run(thread):
        barrier.wait()
        return life(cache, thread, namespaces[thread])

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_in_namespaces_of_their_own_threads_draft_as_if_alone(compiled):
    cache, serial = SuffixCache(24, None, forest=compiled), SuffixCache(24, None, forest=compiled)
    names = [f"tenant {thread}" for thread in range(THREADS)]
    drafts = together(cache, names)
    wanted = [life(serial, thread, names[thread]) for thread in range(THREADS)]
    assert drafts == wanted
    assert sum(len(tokens) for rows in drafts for tokens, *_ in rows) > 2000
    for name in names:
        assert cache.counts(name) == serial.counts(name)


def test_in_one_namespace_the_trie_is_that_of_the_serial_run(compiled):
    cache, serial = SuffixCache(24, None, forest=compiled), SuffixCache(24, None, forest=compiled)
    together(cache, [""] * THREADS)
    for thread in range(THREADS):
        life(serial, thread, "")
    assert cache.counts() == serial.counts()
    left, right = cache.stats(), serial.stats()
    assert (left.tokens, left.nodes, left.responses) == (right.tokens, right.nodes, right.responses)
    assert left.running == 0


def test_under_limits_and_with_files_nothing_breaks_and_nothing_is_left(compiled, tmp_path):
    cache = SuffixCache(24, 20, max_tokens=300, max_bytes=10**6, time_to_live=1e-4, forest=compiled)
    barrier = Barrier(THREADS)

    def run(thread):
        barrier.wait()
        rng = random.Random(thread)
        for turn in range(20):
            name = f"{thread}-{turn}"
            cache.start(name, [1, 2, 3], namespace=f"{thread % 3}")
            cache.extend(name, [rng.randrange(9) for _ in range(30)])
            found = cache.speculate(name)
            assert len(found.tokens) == len(found.parents) == len(found.probabilities)
            assert all(0 <= token < 9 for token in found.tokens.tolist())
            if turn == 10:
                cache.save(tmp_path / f"{thread}")
            if turn == 15:
                cache.merge(tmp_path / f"{thread}")
            cache.stop(name)
            stats = cache.stats()
            assert stats.tokens <= 300
            assert stats.responses <= 20

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))
    for name in cache.shared():
        cache.evict(name)
    stats = cache.stats()
    assert (stats.running, stats.responses, stats.tokens, stats.nodes, stats.namespaces) == (0, 0, 0, 0, 0)
