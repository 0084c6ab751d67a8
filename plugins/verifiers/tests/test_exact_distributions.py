"""The output's distribution with `standard` and `block`, enumerated: each draft, each outcome, by its numbers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_plugin_verifiers.block import BlockTests, remainders
from specdec_plugin_verifiers.distributions import DistributionReader, Remainder
from specdec_plugin_verifiers.kernels import torch_ref

TOLERANCE = 1e-12
ONE = Fraction(1)


def distributions(seed, shape, size, zeros=True):
    """Random distributions whose entries are whole multiples of 1/64, exact in float32; one entry of each may be 0."""
    rng = np.random.default_rng(seed)
    result = rng.multinomial(64 - size, np.full(size, 1 / size), shape) + 1
    if zeros:
        row = rng.integers(0, size, shape)
        moved = np.take_along_axis(result, row[..., None], -1)
        np.put_along_axis(result, row[..., None], 0, -1)
        np.put_along_axis(
            result, (row[..., None] + 1) % size, np.take_along_axis(result, (row[..., None] + 1) % size, -1) + moved, -1
        )
    return result / 64


def exact(values):
    return [Fraction(float(value)) for value in values]


def children_of_a_node(p, q, tokens, soft):
    """Return, with the code's numbers, the chance of each child to be accepted and of each id to end the row."""
    given = torch.tensor([tokens]), torch.tensor([soft]), torch.tensor([0 if any(soft) else -1])
    draft = Draft(
        [len(tokens)], np.int32(tokens), np.full(len(tokens), -1, np.int32), torch.from_numpy(np.float32([q]))
    )
    read, target = DistributionReader().read(draft, len(p), torch.device("cpu")), torch.from_numpy(np.float32([p]))
    ratio, alpha, beta = torch_ref.accept(target, *given, read)
    left = Remainder(torch.tensor([0]), alpha, beta, given[2], given[0])
    weights = exact(torch_ref.weights(target, left, read)[0])
    rest, accepted = ONE, []
    for value in exact(ratio[0]):
        accepted.append(rest * min(ONE, value))
        rest -= accepted[-1]
    total = sum(weights)
    return accepted, [
        rest * (weight / total if total else value) for weight, value in zip(weights, exact(p), strict=True)
    ]


def distribution_of_a_node(p, q, drawn):
    """Return the distribution of what a node emits, over `drawn`: (chance, tokens, soft) of every set of children."""
    distribution = [Fraction(0)] * len(p)
    for chance, tokens, soft in drawn:
        accepted, ended = children_of_a_node(p, q, tokens, soft)
        for token, value in zip(tokens, accepted, strict=True):
            distribution[token] += chance * value
        distribution = [a + chance * b for a, b in zip(distribution, ended, strict=True)]
    return distribution


def drawn_children(q, kinds, *, replace=False, avoid=True):
    """Yield (chance, tokens, soft) of all ways to draw children: "q" from q, or a point mass given as an id.

    A point mass "next" is the lowest id that is not a sibling yet, so that it depends on what was drawn before it.
    """

    def grow(chance, tokens, soft):
        if len(tokens) == len(kinds):
            yield chance, tokens, soft
            return
        kind = kinds[len(tokens)]
        if kind != "q":
            token = min(set(range(len(q))) - set(tokens)) if kind == "next" else kind
            yield from grow(chance, [*tokens, token], [*soft, False])
            return
        left = [Fraction(0) if token in tokens and not replace else value for token, value in enumerate(exact(q))]
        for token, value in enumerate(left):
            if value:
                yield from grow(chance * value / sum(left), [*tokens, token], [*soft, True])

    return list(grow(ONE, [], []))


def assert_equals(distribution, p):
    assert max(abs(float(a - b)) for a, b in zip(distribution, exact(p), strict=True)) < TOLERANCE


def assert_differs(distribution, p):
    assert max(abs(float(a - b)) for a, b in zip(distribution, exact(p), strict=True)) > 1e-3


KINDS = {
    "one drawn": ["q"],
    "two drawn": ["q", "q"],
    "three drawn": ["q", "q", "q"],
    "four drawn": ["q", "q", "q", "q"],
    "point masses": [2, 0, 3],
    "a repeated point mass": [2, 2, 1],
    "point mass, then drawn": [1, "q", "q"],
    "drawn, then a point mass that depends on them": ["q", "next", "q"],
    "point mass between": ["q", "next", "next", "q"],
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_a_node_emits_the_targets_distribution_whatever_its_children_are(kinds, seed):
    p, q = distributions(seed, (), 5), distributions(100 + seed, (), 5, zeros=seed < 2)
    assert_equals(distribution_of_a_node(p, q, drawn_children(q, kinds)), p)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kinds", [["q", "q"], ["q", "q", "q"], [0, "q", "q"], ["q", 1, "q"]], ids=str)
def test_children_drawn_independently_repeat_each_other_and_the_distribution_holds(kinds, seed):
    p, q = distributions(seed, (), 4), distributions(100 + seed, (), 4)
    assert_equals(distribution_of_a_node(p, q, drawn_children(q, kinds, replace=True)), p)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_children_without_replacement_follow_the_known_distribution(count):
    """Candidates of a node with p = (.5, .3, .15, .05) and q = (.1, .2, .3, .4)."""
    p, q = np.float32([0.5, 0.3, 0.15, 0.05]), np.float32([0.1, 0.2, 0.3, 0.4])
    distribution = distribution_of_a_node(p, q, drawn_children(q, ["q"] * count))
    assert max(abs(float(a) - b) for a, b in zip(distribution, p.tolist(), strict=True)) < 1e-7


def test_distributions_that_do_not_add_up_to_one_are_used_as_they_are_and_stand_for_their_multiples():
    """docs/bug-reports.md, row 2: q in a coarse dtype; the draft was drawn in proportion to it."""
    p, q = distributions(3, (), 4), distributions(4, (), 4, zeros=False)
    coarse = torch.tensor(q * 0.993, dtype=torch.bfloat16).float().numpy()
    assert abs(coarse.sum() - 1) > 1e-3
    for kinds in (["q"], ["q", "q", "q"]):
        assert_equals(distribution_of_a_node(p, coarse, drawn_children(coarse, kinds)), p)


def test_this_enumeration_sees_children_of_another_distribution_than_they_are_said_to_have():
    p, q = distributions(0, (), 4), distributions(100, (), 4, zeros=False)
    assert_differs(distribution_of_a_node(p, q, drawn_children(p, ["q"])), p)
    best = int(np.argmax(q))
    assert_differs(distribution_of_a_node(p, q, [(ONE, [best], [True])]), p)  # docs/bug-reports.md, row 1
    ordered = [(chance, sorted(tokens), soft) for chance, tokens, soft in drawn_children(q, ["q", "q"])]
    assert_differs(distribution_of_a_node(p, q, ordered), p)  # not in the order of drawing


V, M = 3, 3
KINDS_OF_CHAINS = {"soft": "qqq", "one-hot": "111", "mixed": "q1q", "mixed otherwise": "1qq", "short": "qq"}


class World:
    """Distributions p and q of every text of up to M ids; drafts of kind "1" are a fixed id of their text."""

    def __init__(self, seed):
        texts = [text for n in range(M + 1) for text in itertools.product(range(V), repeat=n)]
        self.p = dict(zip(texts, distributions(seed, len(texts), V), strict=True))
        self.q = dict(zip(texts, distributions(1000 + seed, len(texts), V, zeros=seed % 2 == 0), strict=True))
        self.fixed = dict(zip(texts, np.random.default_rng(seed).integers(0, V, len(texts)).tolist(), strict=True))

    def drafts(self, kinds):
        """Yield (chance, ids) of every chain that can be drafted."""
        for ids in itertools.product(range(V), repeat=len(kinds)):
            chance = ONE
            for i, kind in enumerate(kinds):
                chance *= Fraction(self.q[ids[:i]][ids[i]]) if kind == "q" else Fraction(self.fixed[ids[:i]] == ids[i])
            if chance:
                yield chance, ids

    def draft(self, ids, kinds):
        """The chain as a draft; rows of q are in the opposite order."""
        soft = [i for i, kind in enumerate(kinds) if kind == "q"]
        q_row = [len(soft) - 1 - soft.index(i) if kind == "q" else -1 for i, kind in enumerate(kinds)]
        draft = Draft.of([ids])
        if soft:
            draft.q = torch.tensor(np.array([self.q[ids[:i]] for i in reversed(soft)]), dtype=torch.float32)
            draft.q_row = np.array(q_row, np.int32)
        return draft

    def rows(self, ids):
        """Distributions p at the logits rows of a chain."""
        return np.array([self.p[ids[:i]] for i in range(len(ids) + 1)])

    def chance(self, text, start):
        """Chance that the target goes on from text[:start] to `text`."""
        chance = ONE
        for i in range(start, len(text)):
            chance *= Fraction(self.p[text[:i]][text[i]])
        return chance

    def assert_lossless(self, outcomes, length):
        """Compare the distribution of the first `length` ids with the target's, which adds what outcomes leave open.

        `outcomes` are (chance, ids emitted).
        """
        distribution = dict.fromkeys(itertools.product(range(V), repeat=length), Fraction(0))
        for chance, emitted in outcomes:
            for text in distribution:
                if text[: len(emitted)] == emitted[:length]:
                    distribution[text] += chance * self.chance(text, len(emitted))
        worst = max(abs(float(got - self.chance(text, 0))) for text, got in distribution.items())
        assert worst < 1e-6, worst  # softmax in float32
        return worst


def ends(weights, p):
    """Yield (chance, id) of the draw that ends a row."""
    weights, fallback = exact(weights), exact(p)
    total = sum(weights)
    yield from ((w / total if total else f, token) for token, (w, f) in enumerate(zip(weights, fallback, strict=True)))


def standard_outcomes(world, kinds, trial):
    for chance, ids in world.drafts(kinds):
        rows = world.rows(ids)
        call = trial(world.draft(ids, kinds), rows)
        families = call.forest.families(np.arange(len(rows)))
        given = [torch.from_numpy(part) for part in (families.tokens, families.soft, families.q_row)]
        p = torch.softmax(call.logits, -1)
        ratio, alpha, beta = call.op("accept")(p, *given, call.distributions)
        left = Remainder(torch.arange(len(rows)), alpha, beta, given[2], given[0])
        weights = torch_ref.weights(p, left, call.distributions)
        for i in range(len(ids) + 1):
            here = min(ONE, Fraction(float(ratio[i, 0]))) if i < len(ids) else Fraction(0)
            yield from ((chance * (1 - here) * value, (*ids[:i], token)) for value, token in ends(weights[i], rows[i]))
            chance *= here


def block_outcomes(world, kinds, trial):
    for chance, ids in world.drafts(kinds):
        rows = world.rows(ids)
        call = trial(world.draft(ids, kinds), rows)
        tests = BlockTests.of(call, np.arange(len(ids)))
        reached = torch.cat([torch.ones(1, dtype=torch.float64), tests.b[0]])
        left = remainders(call, tests.families, torch.arange(len(rows)), reached)
        weights = torch_ref.weights(tests.p, left, call.distributions)
        for tau in range(len(ids), -1, -1):
            here = Fraction(float(tests.h[0, tau - 1])) if tau else ONE
            yield from ((chance * here * value, (*ids[:tau], token)) for value, token in ends(weights[tau], rows[tau]))
            chance *= 1 - here


OUTCOMES = {"standard": standard_outcomes, "block": block_outcomes}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kinds", KINDS_OF_CHAINS.values(), ids=KINDS_OF_CHAINS)
@pytest.mark.parametrize("rule", OUTCOMES)
def test_chains_emit_the_targets_distribution(rule, kinds, seed, trial):
    World(seed).assert_lossless(OUTCOMES[rule](World(seed), kinds, trial), len(kinds) + 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_tests_of_block_are_those_of_the_paper(seed, trial):
    world = World(seed)
    for _, ids in world.drafts("qqq"):
        tests = BlockTests.of(trial(world.draft(ids, "qqq"), world.rows(ids)), np.arange(3))
        b = 1.0
        for i in range(3):
            b = min(1.0, b * world.p[ids[:i]][ids[i]] / world.q[ids[:i]][ids[i]])
            mass = np.maximum(b * world.p[ids[: i + 1]] - world.q[ids[: i + 1]], 0).sum()
            h = b if i == 2 else mass / (mass + 1 - b) if mass + 1 - b > 0 else 1.0
            assert tests.b[0, i].item() == pytest.approx(b, abs=1e-6)
            assert tests.h[0, i].item() == pytest.approx(h, abs=1e-5)


def mean_accepted(outcomes):
    return float(sum(chance * (len(emitted) - 1) for chance, emitted in outcomes))


def test_block_accepts_more_than_standard_and_as_much_where_drafts_are_point_masses(trial):
    gained = []
    for seed in range(4):
        world = World(seed)
        for kinds in ("qqq", "111"):
            standard, block = (mean_accepted(outcomes(world, kinds, trial)) for outcomes in OUTCOMES.values())
            assert block == pytest.approx(standard, abs=1e-6) if kinds == "111" else block > standard - 1e-6
            gained.append(block - standard)
    assert max(gained) > 0.01


def test_this_enumeration_sees_a_residual_that_is_p(trial):
    world = World(0)

    def wrong(world, kinds):
        for chance, emitted in standard_outcomes(world, kinds, trial):
            *before, _ = emitted
            rejected = len(before) < len(kinds)
            if rejected:
                last = world.p[tuple(before)]
                yield from ((chance * Fraction(last[token]), (*before, token)) for token in range(V))
            else:
                yield chance, emitted

    with pytest.raises(AssertionError):
        world.assert_lossless(wrong(world, "qqq"), 4)
