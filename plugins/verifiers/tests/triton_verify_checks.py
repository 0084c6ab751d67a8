"""Checks of whole verifications in Triton, run by test_triton_kernels.py in a process of their own.

The rules are compared with their definitions on random calls, and their distributions are enumerated with the numbers
that the kernels themselves compute.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from specdec_core.draft import Draft
from specdec_core.noise import Noise
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.ending import read
from specdec_plugin_verifiers.kernels.verify import reference, walks
from specdec_plugin_verifiers.kernels.verify import triton as verify
from specdec_plugin_verifiers.trial import Judge, Trial

sys.path.insert(0, str(Path(__file__).parent))
from test_exact_distributions import KINDS_OF_CHAINS, World, distributions, ends

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RULES = ("coupled", "standard", "block")


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    """Cut small rows into several stretches, and sums and joins of rows into several turns."""
    from specdec_nn.ops.draw import triton as draw_triton

    for module in (draw_triton, verify):
        monkeypatch.setattr(module, "STRETCH", 4)
    monkeypatch.setattr(verify, "LOOKED", 4)
    monkeypatch.setattr(verify, "TILE", 8)


@pytest.fixture
def judge(kernels):
    return Judge(kernels)


def trial_of(judge, call, rule):
    """Read a call as one on a device."""
    call = dict(call, logits=call["logits"].to(DEVICE))
    if call["target_draws"] is not None:
        call["target_draws"] = call["target_draws"].to(DEVICE)
    if rule == "coupled":
        return Trial.of(judge.kernels, None, *call.values())
    return dataclasses.replace(judge.trial(**call), on_host=False)


def put_ids_on_the_device(draft):
    """Make tensors of a draft's ids and rows of q, as drafters on a device give them."""
    draft.tokens = torch.from_numpy(draft.tokens).to(DEVICE)
    if draft.q_row is not None:
        draft.q_row = torch.from_numpy(draft.q_row).to(DEVICE)


def both(monkeypatch, judge, call, rule):
    """Return what the kernels give, and what the definition does."""
    found = getattr(verify, f"verify_{rule}")(trial_of(judge, call, rule))
    with monkeypatch.context() as patch:
        patch.setenv("SPECDEC_KERNELS", "reference")
        return found, getattr(reference, f"verify_{rule}")(trial_of(judge, call, rule))


def same(found, want):
    """Compare results, whose paths may have places beyond the deepest."""
    depth = min(found.shape[1], want.shape[1])
    assert (found[:, depth:] == -1).all() and (want[:, depth:] == -1).all()
    return torch.equal(found[:, :depth], want[:, :depth].long())


@pytest.mark.parametrize("rule", RULES)
def test_results_are_those_of_the_definition(rule, judge, call_of, monkeypatch):
    rng, accepted, rejected = np.random.default_rng(RULES.index(rule)), 0, 0
    for case in range(10):
        call = call_of(rng, trees=rule != "block" and case % 2 == 0)
        if case % 3:
            call["target_draws"] = None
        if case % 4 == 1:
            put_ids_on_the_device(call["draft"])
        found, want = both(monkeypatch, judge, call, rule)
        assert same(found, want), (case, found, want)
        taken = (want[:, 2:] >= 0).sum(1).cpu().numpy()
        accepted += int(taken.sum())
        rejected += int((taken < np.asarray(call["draft"].lengths)).sum())
    assert accepted > 2 and rejected > 2


@pytest.mark.parametrize("rule", ["coupled", "standard"])
def test_trees_whose_form_is_on_the_device_are_verified_as_known_ones(rule, judge, call_of, monkeypatch):
    """Their nodes get noise by their depth there, and are their parents' children in the same order."""
    rng, accepted = np.random.default_rng(11), 0
    for case in range(6):
        call = call_of(rng, trees=True)
        if case % 3:
            call["target_draws"] = None
        lengths = np.asarray(call["draft"].lengths, np.int64)
        rows = np.repeat(rng.integers(3, 90, len(lengths)).astype(np.int32), lengths + 1)
        deeper = Trial.of(judge.kernels, None, *call.values()).forest.depths
        known = trial_of(judge, {**call, "noise": dataclasses.replace(call["noise"], positions=rows + deeper)}, rule)
        given = dataclasses.replace(call["draft"], parents=torch.from_numpy(call["draft"].parents).to(DEVICE))
        grown = {**call, "draft": given, "noise": dataclasses.replace(call["noise"], positions=rows)}
        mine, theirs = verify.Call(trial_of(judge, grown, rule)).packed, verify.Call(known).packed
        assert torch.equal(mine.rows, theirs.rows) and torch.equal(mine.kids, theirs.kids)
        found, want = both(monkeypatch, judge, grown, rule)
        assert same(found, want)
        assert same(found, getattr(verify, f"verify_{rule}")(known))
        accepted += int((found[:, 2:] >= 0).sum())
    assert accepted > 2


def test_coupled_accepts_what_equals_the_hosts_draws(judge, call_of):
    rng = np.random.default_rng(7)
    for case in range(8):
        call = call_of(rng, trees=case % 2 == 0)
        trial = trial_of(judge, call, "coupled")
        got, want = read(trial, verify.verify_coupled(trial)), Coupled().verify(**call)
        for field in ("accepted", "path", "emitted", "logits_row"):
            assert np.array_equal(getattr(got, field), getattr(want, field))


def chains(tokens, probs, *, dtype=torch.float32, width=None):
    """Return a call for chains over rows of probabilities, in a tensor that is NaN beyond them."""
    draft, values = Draft.of(tokens), torch.log(torch.tensor(probs, dtype=torch.float32))
    rows, size = values.shape
    logits = torch.full((rows, width or size), torch.nan, dtype=dtype)
    logits[:, :size] = values.to(dtype)
    noise = Noise(np.arange(rows, dtype=np.uint64), np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
    given = {"draft": draft, "logits": logits[:, :size], "noise": noise, "target_draws": None}
    return {**given, "greedy": np.zeros(len(tokens), np.bool_)}


@pytest.mark.parametrize("rule", RULES)
def test_all_none_and_nothing_of_a_chain_is_accepted(rule, judge, monkeypatch):
    """Rows with one possible id decide without chance; -inf everywhere else, NaN beyond the vocabulary."""
    sure = np.eye(9)[[3, 7, 8, 0, 5, 2, 6, 2, 1]]
    call = chains([[3, 7], [4, 5], [], [2]], sure, width=16)
    for greedy in (False, True):
        call["greedy"][:] = greedy
        found, want = both(monkeypatch, judge, call, rule)
        assert same(found, want)
        assert found[:, :2].tolist() == [[2, 8], [3, 0], [6, 6], [8, 1]]
        assert found[:, 2:].tolist() == [[0, 1], [-1, -1], [-1, -1], [4, -1]]


@pytest.mark.parametrize("rule", RULES)
def test_a_row_without_a_distribution_ends_its_own_request_alone(rule, judge, monkeypatch):
    rng = np.random.default_rng(8)
    call = chains([[1, 2], [3], [0, 1]], rng.dirichlet(np.ones(7), 8))
    whole, _ = both(monkeypatch, judge, call, rule)
    for poison in (torch.nan, torch.inf, -torch.inf):
        call["logits"][3] = -torch.inf
        call["logits"][3, 4] = poison
        for greedy in (False, True):
            call["greedy"][1] = greedy
            found, _ = both(monkeypatch, judge, call, rule)
            assert torch.equal(found[[0, 2]], whole[[0, 2]])
            assert found[1].tolist() == [3, -1, -1, -1]


@pytest.mark.parametrize("rule", RULES)
def test_coarse_logits_are_read_as_they_are(rule, judge, call_of, monkeypatch):
    rng = np.random.default_rng(9)
    call = call_of(rng, trees=False)
    call["target_draws"] = None
    call["logits"] = call["logits"].to(torch.bfloat16)
    found, want = both(monkeypatch, judge, call, rule)
    assert same(found, want)
    call["logits"] = call["logits"].float()
    assert torch.equal(both(monkeypatch, judge, call, rule)[0], found)


def test_equal_logits_give_the_lowest_id_and_equal_siblings_the_first(judge, monkeypatch):
    call = chains([[2, 2, 5]], np.full((4, 11), 1 / 11))
    call["draft"].parents = np.array([-1, -1, 0], np.int32)
    call["logits"][0, 2] = call["logits"][0, 9] = 3.0
    call["greedy"][:] = True
    found, want = both(monkeypatch, judge, call, "coupled")
    assert same(found, want) and found.tolist() == [[1, 0, 0, -1]]


def test_no_rows_give_no_rows(judge):
    call = chains([], np.zeros((0, 5)))
    for rule in RULES:
        assert len(getattr(verify, f"verify_{rule}")(trial_of(judge, call, rule))) == 0


@triton.jit
def told(key, token, position, seq, purpose):
    """Accept where the position is 0 and there is any chance, else reject; in place of a uniform draw."""
    return tl.where(position > 0, 1e30, tl.where(position < 0, -1.0, 0.0)).to(tl.float64)


def enumerate_chains(judge, world, kinds, rule, monkeypatch):
    """Yield (chance, ids emitted) of all drafts of a world and all that can come of them, by the kernels' numbers.

    Each draft runs once for each place where it can end, in one call: what is accepted is told by the positions.
    """
    monkeypatch.setattr(walks, "uniform", told)
    places = list(range(len(kinds) + 1))
    drafts = list(world.drafts(kinds))
    cases = [(chance, ids, stop) for chance, ids in drafts for stop in places]
    parts = [world.draft(ids, kinds) for _, ids, _ in cases]
    draft = Draft.of([ids for _, ids, _ in cases])
    if parts[0].q is not None:
        sizes = np.cumsum([0, *(len(part.q) for part in parts)])
        draft.q = torch.cat([part.q for part in parts])
        rows = [np.where(p.q_row < 0, -1, p.q_row + base) for p, base in zip(parts, sizes, strict=False)]
        draft.q_row = np.concatenate(rows).astype(np.int32)
    probs = np.concatenate([world.rows(ids) for _, ids, _ in cases])
    logits = torch.from_numpy(probs.astype(np.float32)).log()
    # At the row of a test: 0 accepts what has a chance (`standard`), -1 accepts in any case (`block`), 1 rejects.
    accept = [0] * len(kinds) if rule == "standard" else [-1] * len(kinds)
    words = [[*accept[:stop], *([1] * (len(kinds) + 1 - stop))] for _, _, stop in cases]
    positions = np.array(words, np.int32).reshape(-1)
    noise = Noise(np.zeros(len(positions), np.uint64), positions, np.zeros(len(positions), np.int32))
    greedy = np.zeros(len(cases), np.bool_)
    trial = trial_of(
        judge, {"draft": draft, "logits": logits, "noise": noise, "target_draws": None, "greedy": greedy}, rule
    )
    call = verify.Call(trial)
    measures = getattr(verify, f"walk_{rule}")(call)
    chances = measures.chances.view(len(cases), len(kinds) + 1)[:, 1:].tolist()
    for n, ((chance, ids, stop), (row, distribution, removed, todo), share) in enumerate(
        zip(cases, measures.places.tolist(), measures.shares.tolist(), strict=True)
    ):
        here, reached = chance, Fraction(1)
        if rule == "standard":
            if row != n * (len(kinds) + 1) + stop:  # a draft before it has no chance
                assert min(chances[n][:stop]) <= 0
                continue
            for value in chances[n][:stop]:
                reached *= min(Fraction(1), Fraction(value))
            if stop < len(kinds):
                reached *= 1 - min(Fraction(1), Fraction(chances[n][stop]))
        else:
            reached = Fraction(chances[n][stop - 1]) if stop else Fraction(1)
            for value in chances[n][stop:]:
                reached *= 1 - Fraction(value)
        assert row == n * (len(kinds) + 1) + stop and todo == 1
        yield from (
            (here * reached * value, (*ids[:stop], token))
            for value, token in ends(
                weights_of(world.p[ids[:stop]], trial, share, distribution, removed, ids, stop), world.p[ids[:stop]]
            )
        )


def weights_of(p, trial, share, distribution, removed, ids, stop):
    """Return the weights that a walk leaves to draw from; its own p is exp(x - top) times its inverse."""
    alpha, beta, top, inverse = share
    logits = np.full(len(p), -np.inf, np.float32)
    np.log(p.astype(np.float32), out=logits, where=p > 0)
    own = np.exp(logits - np.float32(top)).astype(np.float64) * inverse
    weights = alpha * own - (
        beta * trial.distributions.q[distribution].double().cpu().numpy() if distribution >= 0 else 0.0
    )
    weights = np.maximum(weights, 0.0)
    if removed:
        weights[ids[stop]] = 0.0
    return weights


def can_be_accepted(world, kinds):
    """Whether some draft of the world is possible and likely enough at every place, so that a wrong chance is seen."""
    drafts = (ids for _, ids in world.drafts(kinds))
    return any(all(0.1 < world.p[ids[:i]][ids[i]] < 0.9 for i in range(len(ids))) for ids in drafts)


@pytest.mark.parametrize("kinds", [KINDS_OF_CHAINS[name] for name in ("soft", "one-hot", "mixed")])
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_chains_emit_the_targets_distribution(rule, kinds, judge, monkeypatch):
    world = next(world for world in map(World, range(50)) if can_be_accepted(world, kinds))
    outcomes = list(enumerate_chains(judge, world, kinds, rule, monkeypatch))
    assert sum(chance for chance, _ in outcomes) == pytest.approx(1, abs=1e-6)
    world.assert_lossless(outcomes, len(kinds) + 1)


def test_this_enumeration_sees_a_residual_that_is_p(judge, monkeypatch):
    world = World(0)
    outcomes = list(enumerate_chains(judge, world, "qqq", "standard", monkeypatch))
    wrong = [
        (
            chance
            if len(ids) == 4
            else sum(c for c, other in outcomes if other[:-1] == ids[:-1])
            * Fraction(float(world.p[ids[:-1]][ids[-1]])),
            ids,
        )
        for chance, ids in outcomes
    ]
    with pytest.raises(AssertionError):
        world.assert_lossless(dict.fromkeys(wrong), 4)


@pytest.mark.parametrize("kinds", ["qq", "21", "q1", "1q"])
def test_a_node_with_children_emits_the_targets_distribution(kinds, judge, monkeypatch):
    """All draws of two children of a node over a vocabulary of three, without replacement; digits are point masses."""
    monkeypatch.setattr(walks, "uniform", told)
    p, q = distributions(1, (), 3, zeros=False), distributions(101, (), 3, zeros=False)
    emitted = np.zeros(3)
    for chance, tokens in drawn(kinds, q):
        soft = [kind == "q" for kind in kinds]
        draft = Draft.of([list(tokens)])
        draft.parents = np.full(2, -1, np.int32)
        if any(soft):
            draft.q, draft.q_row = torch.from_numpy(q[None].astype(np.float32)), np.where(soft, 0, -1).astype(np.int32)
        logits = torch.from_numpy(np.tile(p.astype(np.float32), (3, 1))).log()
        noise = Noise(np.zeros(3, np.uint64), np.ones(3, np.int32), np.zeros(3, np.int32))
        trial = trial_of(
            judge,
            {"draft": draft, "logits": logits, "noise": noise, "target_draws": None, "greedy": np.array([False])},
            "standard",
        )
        measures = verify.walk_standard(verify.Call(trial))
        chances, rest = measures.chances.tolist()[1:], float(chance)
        for token, value in zip(tokens, chances, strict=True):
            emitted[token] += rest * min(1.0, value)
            rest *= 1 - min(1.0, value)
        (_, distribution, removed, _), share = measures.places.tolist()[0], measures.shares.tolist()[0]
        left = weights_of(p, trial, share, distribution, 0, tokens, 0)
        left[list(tokens)] = 0.0
        assert removed == 2
        emitted += rest * (left / left.sum() if left.sum() else p)
    assert np.abs(emitted - p).max() < 1e-6


def drawn(kinds, q):
    """Yield (chance, ids) of two children, drawn from q one after the other without replacement, or as told."""
    for tokens in itertools.product(range(3), repeat=2):
        chance, left = 1.0, q.copy()
        for kind, token in zip(kinds, tokens, strict=True):
            chance *= (left[token] / left.sum() if left.sum() else 0.0) if kind == "q" else float(token == int(kind))
            left[token] = 0.0
        if chance:
            yield chance, tokens
