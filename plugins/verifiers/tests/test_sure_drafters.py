"""The output distribution stays the target's where a drafter leaves next to nothing to all ids but one.

Everything is enumerated: each way to draw the children of a node, each outcome of the tests, with the code's own
numbers in exact fractions. What is left of q or p after such a child is far below the rounding of 1.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.noise import Noise
from specdec_plugin_verifiers.block import BlockTests, remainders
from specdec_plugin_verifiers.distributions import DistributionReader, Distributions, Remainder
from specdec_plugin_verifiers.kernels import torch_ref
from specdec_plugin_verifiers.standard import Standard

numba_ops = pytest.importorskip("specdec_plugin_verifiers.kernels.numba")
OPS = {"reference": torch_ref, "numba": numba_ops}
ONE, NONE = Fraction(1), Fraction(0)
GAPS = [0, 0.5, 3, 10, 16.7, 20, 36, 36.8, 40, 60, 80, 88, 100, 104, 140, 200]
TARGETS = {
    "even": [0.2, 0.5, 0.3],
    "as sure": [1.0, 1e-27, 1e-30],
    "sure of another": [1e-27, 1.0, 1e-12],
    "rounded": [0.99999994, 6e-8, 1e-20],
    "without an id": [0.0, 0.25, 0.75],
}
KINDS = [["q"], ["q", "q"], ["q", "q", "q"], [0, "q", "q"], [1, "q", "q"], ["q", "likely", "q"]]


def exact(values):
    return [Fraction(float(value)) for value in values]


def sure(gap, order=(0, 1, 2)):
    """Return softmax(0, -gap, -1.5 gap) in float32, as a drafter has it, its ids in some order."""
    distribution = torch.softmax(torch.tensor([0.0, -gap, -1.5 * gap]), -1).numpy()
    return distribution[list(order)]


def drawn_children(q, kinds):
    """Yield (chance, tokens, soft) of all ways to draw children without replacement.

    Where q has nothing left, and for the kind "likely", the likeliest other id follows as a point mass.
    """

    def grow(chance, tokens, soft):
        if len(tokens) == len(kinds):
            yield chance, tokens, soft
            return
        kind = kinds[len(tokens)]
        left = [NONE if token in tokens else value for token, value in enumerate(exact(q))]
        if kind == "q" and sum(left):
            for token, value in enumerate(left):
                if value:
                    yield from grow(chance * value / sum(left), [*tokens, token], [*soft, True])
            return
        others = [token for token in range(len(q)) if token not in tokens]
        token = max(others, key=lambda other: (q[other], -other)) if kind in ("q", "likely") else kind
        yield from grow(chance, [*tokens, token], [*soft, False])

    return list(grow(ONE, [], []))


def outcome_of_a_node(ops, p, q, tokens, soft):
    """Return the distribution of the id that a node emits, given its children, from the op's own numbers."""
    draft = Draft([len(tokens)], np.int32(tokens), np.full(len(tokens), -1, np.int32), torch.from_numpy(q[None]))
    read, target = DistributionReader().read(draft, len(p), torch.device("cpu")), torch.from_numpy(p[None])
    given = torch.tensor([tokens]), torch.tensor([soft]), torch.tensor([0])
    ratio, alpha, beta = ops.accept(target, *given, read)
    assert bool(torch.isfinite(ratio).all() and torch.isfinite(alpha).all() and torch.isfinite(beta).all())
    emitted, reached = [NONE] * len(p), ONE
    for token, value in zip(tokens, exact(ratio[0]), strict=True):
        emitted[token] += reached * min(ONE, value)
        reached *= ONE - min(ONE, value)
    weights = exact(torch_ref.weights(target, Remainder(torch.tensor([0]), alpha, beta, given[2], given[0]), read)[0])
    last = weights if sum(weights) else exact(p)
    return [chance + reached * value / sum(last) for chance, value in zip(emitted, last, strict=True)]


def node_distribution(ops, p, q, kinds):
    total = [NONE] * len(p)
    for chance, tokens, soft in drawn_children(q, kinds):
        total = [a + chance * b for a, b in zip(total, outcome_of_a_node(ops, p, q, tokens, soft), strict=True)]
    return total


def assert_is_target(got, p):
    whole = sum(exact(p))
    worst = max(abs(float(a - b / whole)) for a, b in zip(got, exact(p), strict=True))
    assert worst < 3e-7, (worst, [float(value) for value in got])  # p and q themselves add up to 1 within 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ops", OPS.values(), ids=OPS)
def test_a_node_emits_the_targets_distribution_however_sure_the_drafter_is(ops, target, kinds):
    p = np.float32(TARGETS[target])
    for gap, order in itertools.product(GAPS, [(0, 1, 2), (2, 0, 1), (1, 2, 0)]):
        assert_is_target(node_distribution(ops, p, sure(gap, order), kinds), p)


@pytest.mark.parametrize("ops", OPS.values(), ids=OPS)
def test_the_second_child_has_the_ratio_of_what_is_left(ops):
    """p = (.2, .5, .3), q = softmax(0, -40, -60), drafts 0 then 1: p without 0 is (.625, .375), q is all at 1."""
    p, q = torch.tensor([[0.2, 0.5, 0.3]]), torch.from_numpy(sure(40)[None])
    given = torch.tensor([[0, 1]]), torch.tensor([[True, True]]), torch.tensor([0])
    ratio, _, _ = ops.accept(p, *given, Distributions(q, q.double().sum(1)))
    assert ratio[0].tolist() == pytest.approx([0.2, 0.625], rel=1e-6)


def test_trees_of_a_nearly_sure_drafter_give_the_targets_distribution_in_draws(kernels):
    """The whole verifier, 40,000 requests with the issue's p and q, for logits that a softmax turns into them."""
    p, count = np.float32([0.2, 0.5, 0.3]), 40_000
    draft = Draft([2] * count, np.tile(np.int32([0, 1]), count), np.full(2 * count, -1, np.int32))
    draft.q, draft.q_row = torch.from_numpy(sure(40)[None]), np.zeros(2 * count, np.int32)
    logits = torch.from_numpy(np.log(p)).repeat(3 * count, 1)
    noise = Noise(
        np.repeat(np.arange(count, dtype=np.uint64), 3),
        np.tile(np.int32([9, 10, 10]), count),
        np.zeros(3 * count, np.int32),
    )
    found = Standard(kernels).verify(draft, logits, noise, None, np.zeros(count, np.bool_))
    first = found.emitted[np.cumsum(found.accepted + 1) - found.accepted - 1]
    share = np.bincount(first, minlength=3) / count
    assert np.abs(share - p).max() < 5 * np.sqrt(0.25 / count)


def block_distribution(p, q, trial):
    """Return the distribution of the first two ids under `block`, [9], for the same p and q at each of two drafts."""
    got = dict.fromkeys(itertools.product(range(3), repeat=2), NONE)
    after = [value / sum(exact(p)) for value in exact(p)]
    for first, second in got:
        chance = exact(q)[first] / sum(exact(q)) * exact(q)[second] / sum(exact(q))
        if not chance:
            continue
        draft = Draft.of([[first, second]])
        draft.q, draft.q_row = torch.from_numpy(np.stack([q, q])), np.int32([0, 1])
        call = trial(draft, np.stack([p, p, p]))
        tests = BlockTests.of(call, np.arange(2))
        assert bool(torch.isfinite(tests.h).all())
        reached = torch.cat([torch.ones(1, dtype=torch.float64), tests.b[0]])
        weights = torch_ref.weights(
            tests.p, remainders(call, tests.families, torch.arange(3), reached), call.distributions
        )
        for tau in (2, 1, 0):
            here = Fraction(float(tests.h[0, tau - 1])) if tau else ONE
            last = exact(weights[tau]) if any(exact(weights[tau])) else exact(p)
            ends = [value / sum(last) for value in last]
            for pair in got:
                if pair[:tau] == (first, second)[:tau]:
                    left = [ends, after][: 2 - tau]
                    share = ONE
                    for place, distribution in enumerate(left):
                        share *= distribution[pair[tau + place]]
                    got[pair] += chance * here * share
            chance *= ONE - here
    return got


@pytest.mark.parametrize("target", TARGETS)
def test_block_emits_the_targets_distribution_however_sure_the_drafter_is(target, trial):
    p = np.float32(TARGETS[target])
    whole = sum(exact(p))
    for gap, order in itertools.product(GAPS, [(0, 1, 2), (2, 0, 1)]):
        for (one, other), got in block_distribution(p, sure(gap, order), trial).items():
            assert abs(float(got - exact(p)[one] * exact(p)[other] / whole**2)) < 1e-6, (gap, order, one, other)
