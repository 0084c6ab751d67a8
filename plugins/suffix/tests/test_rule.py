"""Drafts are those of the rule in docs/suffix.md: its worked results, and a model without any tree on random traces."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_plugin_suffix.forest import Rules

THIRD, QUARTER = float(np.float32(1) / np.float32(3)), 0.25
EXAMPLE = [[7, 8, 9, 10], [7, 8, 9, 11], [7, 8, 12, 13]]
WORKED = [  # finished responses, prompt, response, rules, depth, ids, parents, probabilities, match
    ([], [1, 2, 3, 4, 5, 1, 2], [3], {}, 24, [4, 5, 1], [-1, 0, 1], [0.5] * 3, 3),
    ([], [1, 2, 3, 4, 5, 1, 2], [3], {"max_factor": 2.0}, 24, [4, 5, 1, 2, 3], [-1, 0, 1, 2, 3], [0.5] * 5, 3),
    ([], [3], [], {}, 24, [], [], [], 0),
    (EXAMPLE, [60], [7, 8], {}, 24, [9, 10], [-1, 0], [0.5, 0.25], 2),
    (EXAMPLE, [60], [7, 8], {"min_probability": 0.5}, 24, [9], [-1], [0.5], 2),
    (
        EXAMPLE, [60], [7, 8], {"max_factor": 4.0, "tree": True}, 24,
        [9, 12, 10, 11, 13], [-1, -1, 0, 0, 1], [0.5, 0.25, 0.25, 0.25, 0.25], 2,
    ),
    ([[7, 8], [7, 9]], [60], [7], {}, 24, [8], [-1], [THIRD], 1),
    ([[7, 8], [7, 9], [7, 8], [7, 9]], [60], [7], {}, 24, [9], [-1], [0.4], 1),
    ([[7, 8], [7, 9], [7, 9], [7, 8]], [60], [7], {}, 24, [8], [-1], [0.4], 1),
    ([], [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [], {"max_factor": 4.0}, 4, [4, 5, 6], [-1, 0, 1], [0.5] * 3, 1),
    ([[5, 6, 7]], [5, 6, 8, 5, 6], [], {}, 24, [8, 5], [-1, 0], [0.5, 0.5], 2),
    ([], [3, 3, 3, 3], [], {}, 24, [3, 3], [-1, 0], [2 * THIRD, THIRD], 2),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(WORKED)))
def test_worked_results(case, twin_of, forest):
    finished, prompt, response, rules, depth, ids, parents, probabilities, match = WORKED[case]
    twin = twin_of(forest, depth)
    for i, text in enumerate(finished):
        twin.start(i, [100 + i], Rules())
        twin.step(i, text, 0)
    twin.start("new", prompt, Rules(**rules))
    got, wanted = twin.step("new", response, 24)
    assert got[:2] == (ids, parents)
    assert got[2] == pytest.approx(probabilities, rel=1e-6)
    assert got[3] == pytest.approx(sum(probabilities), rel=1e-6)
    assert got[4] == match
    assert got == wanted


def trace(twin, rng, text_of, phrases_of, rules_of, steps):
    """Requests that start, grow, draft, end and are removed, some with drafts that the model cannot have made."""
    alphabet = rng.choice([1, 2, 3, 5, 40])
    phrases = phrases_of(rng, alphabet)
    drafted, names = 0, 0
    for _ in range(steps):
        if len(twin.requests) < 3 or rng.random() < 0.15:
            names += 1
            twin.start(names, text_of(rng, rng.randint(0, 15), alphabet, phrases), rules_of(rng), rng.random() < 0.9)
        name = rng.choice(list(twin.requests))
        got, wanted = twin.step(name, text_of(rng, rng.randint(0, 5), alphabet, phrases), rng.choice([1, 2, 6, 40]))
        assert got == wanted, (name, twin.requests[name].rules)
        drafted += len(got[0])
        if rng.random() < 0.2:
            name = rng.choice(list(twin.requests))
            if twin.requests[name].seq:
                twin.remove(name, rng.choice([None, 1, 5]))
    return drafted


@pytest.mark.parametrize("seed", range(60))
def test_drafts_equal_the_models_on_random_traces(seed, twin_of, forest, text_of, phrases_of, rules_of):
    rng = random.Random(seed)
    twin = twin_of(forest, rng.choice([1, 2, 3, 5, 8, 24]))
    trace(twin, rng, text_of, phrases_of, rules_of, 25)
    assert {string: count for string, count, _ in twin.forest.walk(twin.root)} == twin.model.paths()
    for string, _, followers in twin.forest.walk(twin.root):
        assert list(followers) == [token for token, _ in twin.model.followers(string)], string


def test_the_traces_draft(twin_of, compiled, text_of, phrases_of, rules_of):
    drafted = [trace(twin_of(compiled, 8), random.Random(seed), text_of, phrases_of, rules_of, 25) for seed in range(8)]
    assert min(drafted) > 0
    assert sum(drafted) > 200
