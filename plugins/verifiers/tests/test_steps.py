"""Text of several steps follows the target's joint distribution: no step uses noise that an earlier one has seen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.noise import Noise, Purpose, request_key
from specdec_nn.ops.race.reference import exponential_reference, race_reference, uniform_reference
from specdec_plugin_verifiers import block
from specdec_plugin_verifiers.block import Block
from specdec_plugin_verifiers.standard import Standard
from specdec_testing.goodness_of_fit import assert_follows

V, LENGTH, ROWS = 3, 3, 54_000
P = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
Q = np.array([[0.2, 0.5, 0.3], [0.6, 0.2, 0.2], [0.4, 0.5, 0.1]], np.float32)
START = 10  # position of the first id that is emitted


def noise_at(keys, positions):
    return Noise(keys, positions.astype(np.int32), np.zeros(len(keys), np.int32))


def draw_chains(kind, keys, positions, before, k):
    """Drafts [n, k] and, for each, the row of q that it was drawn from; -1 where it is the most likely id."""
    if kind == "shared":
        purpose = Purpose.TARGET
    else:
        purpose = Purpose.DRAFT
        if kind != "unsalted":
            keys = np.array(
                [request_key(None, int(k), int(p)) for k, p in zip(keys, positions, strict=True)], np.uint64
            )
    tokens, rows = np.empty((len(keys), k), np.int32), np.empty((len(keys), k), np.int32)
    for place in range(k):
        e = exponential_reference(noise_at(keys, positions + place), purpose, torch.arange(V)).numpy()
        sample, best = (Q[before] / e).argmax(1), Q[before].argmax(1)
        soft = {"one-hot": np.zeros(len(keys), np.bool_), "mixed": before % 2 == 0}.get(
            kind, np.ones(len(keys), np.bool_)
        )
        rows[:, place] = np.where(soft, before, -1)
        before = tokens[:, place] = np.where(soft, sample, best)
    return tokens, rows


def generate(verifier, kind, k, seed):
    """Return ROWS texts of LENGTH ids after id 0, [ROWS, LENGTH], and the number of steps they took."""
    keys = np.random.default_rng(seed).integers(0, 2**63, ROWS).astype(np.uint64)
    text = np.zeros((ROWS, 1 + LENGTH + k), np.int64)
    size, steps = np.zeros(ROWS, np.int64), 0
    while (going := np.flatnonzero(size < LENGTH)).size:
        before, positions = text[going, size[going]], START + size[going]
        tokens, rows = draw_chains(kind, keys[going], positions, before, k)
        last = np.concatenate([before[:, None], tokens], 1).ravel()
        places = (positions[:, None] + np.arange(k + 1)).ravel()
        noise = noise_at(np.repeat(keys[going], k + 1), places)
        probs = torch.from_numpy(P.astype(np.float32))[torch.from_numpy(last)]
        draws = race_reference(probs, noise, Purpose.TARGET)
        draft = Draft([k] * len(going), tokens.ravel(), q=torch.from_numpy(Q), q_row=rows.ravel())
        verdict = verifier.verify(draft, probs.log(), noise, draws, np.zeros(len(going), np.bool_))
        ends = np.cumsum(verdict.accepted + 1)
        for place in range(k + 1):
            there = verdict.accepted >= place
            row = going[there]
            text[row, size[row] + 1 + place] = verdict.emitted[(ends - verdict.accepted - 1 + place)[there]]
        size[going] += verdict.accepted + 1
        steps += len(going)
    return text[:, 1 : 1 + LENGTH], steps


def assert_joint_distribution(texts):
    places = V ** np.arange(LENGTH - 1, -1, -1)
    counts = np.bincount(texts @ places, minlength=V**LENGTH)
    distribution = [
        np.prod([P[a, b] for a, b in itertools.pairwise((0, *text))])
        for text in itertools.product(range(V), repeat=LENGTH)
    ]
    assert_follows(counts, distribution)


RULES = {"standard": Standard, "block": Block}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "k"), [("soft", 2), ("soft", 3), ("one-hot", 3), ("mixed", 3)])
@pytest.mark.parametrize("rule", RULES)
def test_joint_distribution(rule, kind, k, kernels):
    texts, steps = generate(RULES[rule](kernels), kind, k, seed=k)
    assert ROWS < steps < LENGTH * ROWS
    assert_joint_distribution(texts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unsalted", "shared"])
def test_standard_looks_at_no_draft_twice_so_drafts_may_use_the_same_noise_again(kind, kernels):
    assert_joint_distribution(generate(Standard(kernels), kind, 3, seed=4)[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unsalted", "shared"])
def test_block_looks_at_later_drafts_so_they_must_be_drawn_afresh(kind, kernels):
    """Why `block` is refused for methods that share the target's noise."""
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_joint_distribution(generate(Block(kernels), kind, 3, seed=5)[0])


@pytest.mark.slow
def test_block_needs_uniforms_that_are_fresh_in_every_step(kernels, monkeypatch):
    def stale(trial):
        return uniform_reference(trial.noise, Purpose.ACCEPT, torch.zeros(len(trial.logits), 1, dtype=torch.int64))[
            :, 0
        ]

    monkeypatch.setattr(block, "_uniforms", stale)
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_joint_distribution(generate(Block(kernels), "soft", 3, seed=6)[0])
