"""The index drafts exactly what the rule says, however the ids arrive."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_plugin_ngram.index import Index

V1 = [  # ids, min, max, k, earliest; the latest column has real ids only, since nothing is filled in
    ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 2, 3, 2, [4, 1], [5, 1]),
    ([1, 2, 3, 1, 2, 4, 1, 2], 1, 2, 3, [3, 1, 2], [4, 1, 2]),
    ([1, 2, 3, 4, 2, 3], 2, 2, 5, [4, 2, 3], [4, 2, 3]),
    ([1, 2, 3, 4], 1, 3, 3, [], []),
    ([7, 7, 7, 7], 1, 3, 4, [7], [7]),
    ([9, 2, 3, 8, 5, 2, 3], 1, 5, 3, [8, 5, 2], [8, 5, 2]),
    ([1, 2], 2, 2, 3, [], []),
    # docs/bug-reports.md, row 91: the first match copies 3, the latest 4, and the answer's own ids are searched.
    ([1, 2, 3, 1, 2, 4, 1, 2], 2, 2, 1, [3], [4]),
    # docs/bug-reports.md, row 74: both a 2-gram and a 4-gram match; the longest wins.
    ([1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4], 2, 4, 1, [9], [9]),
]


def drafts(ids, low, high, k, match, *, sizes=None, vocab_size=2**31 - 1):
    """Return the draft after each prefix whose length is in sizes (default: the whole)."""
    array = np.asarray(ids, np.int32)
    array.flags.writeable = False
    index = Index(low, high, latest=match == "latest", vocab_size=vocab_size)
    out = np.full(k, -7, np.int32)
    found = []
    for size in sizes or [len(ids)]:
        count = index.propose(array[:size], k, out, 0)
        found.append(out[:count].tolist())
        assert index.size == size
    return found


@pytest.mark.parametrize(("ids", "low", "high", "k", "earliest", "latest"), V1)
def test_published_vectors(ids, low, high, k, earliest, latest):
    assert drafts(ids, low, high, k, "earliest") == [earliest]
    assert drafts(ids, low, high, k, "latest") == [latest]


@pytest.mark.slow
@pytest.mark.parametrize("match", ["earliest", "latest"])
def test_equals_brute_force_after_every_growth(match, expected, text_of):
    rng = random.Random(match)
    for _ in range(10_000):
        ids = text_of(rng)
        low = rng.randint(1, 6)
        high = low + rng.choice([0, 1, 2, 5, 34])
        k = rng.randint(1, 8)
        sizes = []
        while not sizes or sizes[-1] < len(ids):
            sizes.append(min(len(ids), (sizes[-1] if sizes else 0) + rng.randint(1, 9)))
        want = [expected(ids[:size], low, high, k, match) for size in sizes]
        assert drafts(ids, low, high, k, match, sizes=sizes) == want, (ids, low, high, k, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("match", ["earliest", "latest"])
def test_equals_brute_force_on_longer_texts_that_outgrow_their_arrays(match, expected):
    rng = random.Random(7)
    phrases = [[rng.randrange(400) for _ in range(rng.randint(3, 30))] for _ in range(20)]
    ids = [token for _ in range(160) for token in rng.choice(phrases)]
    sizes = [*range(1, len(ids), 797), len(ids)]
    for low, high in ((1, 40), (3, 3), (10, 500)):
        want = [expected(ids[:size], low, high, 6, match) for size in sizes]
        assert drafts(ids, low, high, 6, match, sizes=sizes) == want
    assert len(ids) > 2000, "the text must be long enough for the arrays to grow several times"


def test_asking_twice_changes_nothing(expected):
    ids = [1, 2, 3, 1, 2, 4, 1, 2]
    for match in ("earliest", "latest"):
        assert drafts(ids, 1, 3, 3, match, sizes=[8, 8, 8]) == [expected(ids, 1, 3, 3, match)] * 3


@pytest.mark.parametrize("match", ["earliest", "latest"])
def test_ids_without_an_embedding_end_a_draft_and_still_count_for_the_match(match, expected, text_of):
    rng = random.Random(3)
    cut = 0
    for _ in range(3000):
        ids = [rng.choice([10**6, -1, -200, 50]) if rng.random() < 0.15 else token for token in text_of(rng, 40)]
        want = expected(ids, 1, 4, 5, match, vocab_size=50)
        cut += len(want) < len(expected(ids, 1, 4, 5, match))
        assert drafts(ids, 1, 4, 5, match, vocab_size=50) == [want], ids
    assert cut > 300, "hardly any draft was cut: the test shows nothing"
