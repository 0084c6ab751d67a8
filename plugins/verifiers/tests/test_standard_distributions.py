"""The distribution of `standard` is the target's at every place of an emitted block, counted over many draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

from specdec_core.draft import Draft
from specdec_core.noise import Noise, Purpose
from specdec_nn.ops.race.reference import exponential_reference, race_reference, uniform_reference
from specdec_plugin_verifiers.distributions import Distributions, Remainder
from specdec_plugin_verifiers.kernels import torch_ref
from specdec_plugin_verifiers.standard import Standard
from specdec_testing.goodness_of_fit import assert_follows
from specdec_testing.table import random_table

VOCAB = 6
ROWS = 54_000
TABLE = random_table(VOCAB, seed=21)
DRAFTER = random_table(VOCAB, seed=22, concentration=0.7).astype(np.float32)
NEWEST = np.arange(ROWS) % VOCAB
SUBSET = np.array([0, 2, 3, 5])  # target ids that a drafter with a vocabulary of its own knows


def drawn(rng, distribution, before, count=1, without=None):
    """Draw ids [n, count] without replacement, in the order of drawing, from distributions distribution[before]."""
    weights = distribution[before].astype(np.float64)
    if without is not None:
        np.put_along_axis(weights, without, 0.0, 1)
    scores = weights / rng.exponential(size=weights.shape)
    return np.argsort(-scores, axis=1)[:, :count]


def chains(rng, kind, distribution=DRAFTER, ids=None):
    """Chains of 0 to 4 drafts: drawn from a distribution of the id before, or its most likely id, or either."""
    lengths = rng.integers(0, 5, len(NEWEST))
    tokens, rows = np.empty((len(NEWEST), 4), np.int64), np.empty((len(NEWEST), 4), np.int64)
    before = NEWEST
    for place in range(4):
        sample, best = drawn(rng, distribution, before)[:, 0], distribution[before].argmax(1)
        soft = {"soft": 1.0, "one-hot": 0.0, "mixed": 0.5}[kind] > rng.random(len(NEWEST))
        column = np.where(soft, sample, best)
        rows[:, place] = np.where(soft, before, -1)
        before = tokens[:, place] = column if ids is None else ids[column]
    there = np.arange(4) < lengths[:, None]
    draft = Draft(lengths.tolist(), tokens[there].astype(np.int32))
    if kind != "one-hot":
        draft.q, draft.q_row = torch.from_numpy(distribution), rows[there].astype(np.int32)
        draft.d2t = None if ids is None else torch.from_numpy(ids - np.arange(len(ids)))
    return draft


def trees(rng, kind, most):
    """Trees of depth 3 with `most` children at the newest id, at two nodes below it and at one below those."""
    parents = [-1] * most + [0] * most + [min(1, most - 1)] * (most > 1) + [most] * most
    tokens = np.empty((len(NEWEST), len(parents)), np.int64)
    rows = np.full(tokens.shape, -1)
    for parent in dict.fromkeys(parents):
        nodes = [node for node, above in enumerate(parents) if above == parent]
        before = NEWEST if parent < 0 else tokens[:, parent]
        best = np.argsort(-DRAFTER[before], axis=1)
        masses = {"soft": 0, "one-hot": len(nodes), "mixed": min(1, len(nodes) - 1)}[kind]
        tokens[:, nodes[:masses]] = best[:, :masses]
        tokens[:, nodes[masses:]] = drawn(rng, DRAFTER, before, len(nodes) - masses, best[:, :masses])
        rows[:, nodes[masses:]] = before[:, None]
    draft = Draft(
        [len(parents)] * len(NEWEST), tokens.ravel().astype(np.int32), np.tile(np.int32(parents), len(NEWEST))
    )
    if kind != "one-hot":
        draft.q, draft.q_row = torch.from_numpy(DRAFTER), rows.ravel().astype(np.int32)
    return draft


def assert_all_places_follow(verdict, transitions, places):
    counts = transitions(verdict, NEWEST.tolist(), VOCAB, 5)
    assert counts[0].sum() == ROWS
    for seen in counts[:places]:
        assert seen.sum() > 300
        assert_follows(seen, TABLE)


@pytest.mark.parametrize("host_draws", [True, False], ids=["host draws", "verifier draws"])
@pytest.mark.parametrize("kind", ["soft", "one-hot", "mixed"])
def test_chains(kind, host_draws, kernels, emit, transitions):
    draft = chains(np.random.default_rng(1), kind)
    verdict = emit(TABLE, NEWEST, draft, verifier=Standard(kernels), host_draws=host_draws)
    assert_all_places_follow(verdict, transitions, 3)


def test_a_draft_vocabulary_in_any_order(kernels, emit, transitions):
    ids = SUBSET[[2, 0, 3, 1]]
    distribution = np.random.default_rng(2).dirichlet(np.ones(len(ids)), VOCAB).astype(np.float32)
    draft = chains(np.random.default_rng(3), "soft", distribution, ids)
    verdict = emit(TABLE, NEWEST, draft, verifier=Standard(kernels))
    assert set(draft.tokens.tolist()) == set(SUBSET.tolist())
    assert_all_places_follow(verdict, transitions, 3)


def test_distributions_of_a_coarse_dtype_are_used_as_the_drafts_were_drawn_from_them(kernels, emit, transitions):
    """docs/bug-reports.md, row 2: drawn in bfloat16, compared with its probabilities, which do not add up to 1."""
    coarse = torch.from_numpy(DRAFTER).bfloat16().float().numpy()
    assert np.abs(coarse.sum(1) - 1).max() > 1e-3
    verdict = emit(TABLE, NEWEST, chains(np.random.default_rng(9), "soft", coarse), verifier=Standard(kernels))
    assert_all_places_follow(verdict, transitions, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["soft", "one-hot", "mixed"])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_trees(most, kind, kernels, emit, transitions):
    draft = trees(np.random.default_rng(most), kind, most)
    verdict = emit(TABLE, NEWEST, draft, verifier=Standard(kernels), host_draws=False)
    assert verdict.accepted.max() == 3
    assert_all_places_follow(verdict, transitions, 3)


def test_drafts_that_the_target_would_draw_are_always_accepted(kernels, emit):
    same = TABLE.astype(np.float32)
    draft = chains(np.random.default_rng(4), "soft", same)
    verdict = emit(same, NEWEST, draft, verifier=Standard(kernels))
    # The target's distribution goes through logarithms, so a ratio may miss 1 by a rounding.
    assert (verdict.accepted == np.array(draft.lengths)).mean() > 0.9999


def test_distributions_are_found_by_q_row_whatever_their_order(kernels, emit, transitions):
    """docs/bug-reports.md, row 9: q of one request paired with the drafts of another."""
    draft = chains(np.random.default_rng(5), "soft")
    order = np.random.default_rng(6).permutation(len(draft.tokens))
    draft.q, draft.q_row = draft.q[draft.q_row][np.argsort(order)], order.astype(np.int32)
    verdict = emit(TABLE, NEWEST, draft, verifier=Standard(kernels))
    assert_all_places_follow(verdict, transitions, 3)
    draft.q_row = np.roll(draft.q_row, 1)
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_all_places_follow(emit(TABLE, NEWEST, draft, verifier=Standard(kernels)), transitions, 3)


class Wrong:
    """Kernels of which one op is replaced, to see these tests fail."""

    def __init__(self, kernels, **ops):
        self.kernels, self.ops = kernels, ops

    def get(self, op, device):
        return self.ops.get(op) or self.kernels.get(op, device)


def residual_of_p(p, left, distributions, noise, purpose):
    """A draw from p after a rejection: the draft's id comes too often."""
    return race_reference(p, noise, purpose)


def without_removal(p, left, distributions, noise, purpose):
    """docs/bug-reports.md, row 3, the other way round: the rejected id stays in p."""
    left = Remainder(left.rows, left.alpha, left.beta, left.q_row, torch.full_like(left.removed, -1))
    return torch_ref.residual(p, left, distributions, noise, purpose)


def one_uniform(noise, purpose, words):
    """One uniform for all siblings."""
    return torch_ref.uniform(noise, purpose, torch.zeros_like(words))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafts", "wrong"),
    [
        (lambda rng: chains(rng, "soft"), {"residual": residual_of_p}),
        (lambda rng: chains(rng, "one-hot"), {"residual": residual_of_p}),
        (lambda rng: chains(rng, "one-hot"), {"residual": without_removal}),
        (lambda rng: trees(rng, "soft", 3), {"residual": residual_of_p}),
        (lambda rng: trees(rng, "one-hot", 3), {"residual": without_removal}),
        (lambda rng: trees(rng, "soft", 3), {"uniform": one_uniform}),
        (lambda rng: trees(rng, "one-hot", 3), {"uniform": one_uniform}),
    ],
)
def test_these_checks_see_a_wrong_rule(drafts, wrong, kernels, emit, transitions):
    rule = Standard(Wrong(kernels, **wrong))
    verdict = emit(TABLE, NEWEST, drafts(np.random.default_rng(7)), verifier=rule, host_draws=False)
    with pytest.raises(AssertionError, match="do not follow the distribution"):
        assert_all_places_follow(verdict, transitions, 1)


def test_draft_acceptance_residual_and_target_draws_of_one_place_are_independent():
    rng = np.random.default_rng(8)
    noise = Noise(rng.integers(0, 2**63, ROWS).astype(np.uint64), np.full(ROWS, 9, np.int32), np.zeros(ROWS, np.int32))
    ids = torch.arange(4)
    p, q = (torch.from_numpy(rng.dirichlet(np.ones(4)).astype(np.float32)).expand(ROWS, 4) for _ in range(2))
    draft = (q.double() / exponential_reference(noise, Purpose.DRAFT, ids)).argmax(1)
    uniforms = uniform_reference(noise, Purpose.ACCEPT, draft[:, None])[:, 0]
    left = Remainder(
        torch.arange(ROWS), torch.ones(ROWS).double(), torch.zeros(ROWS).double(), draft * 0 - 1, draft[:, None]
    )
    left.removed = torch.full_like(left.removed, -1)
    none = Distributions(torch.zeros(0, 1), torch.zeros(0).double())
    events = {
        "draft": draft,
        "acceptance": (uniforms * 5).long(),
        "residual": torch_ref.residual(p, left, none, noise, Purpose.RESIDUAL),
        "target": race_reference(p, noise, Purpose.TARGET),
    }
    names = list(events)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            table = np.zeros((5, 5))
            np.add.at(table, (events[one].numpy(), events[other].numpy()), 1)
            table = table[table.any(1)][:, table.any(0)]
            assert chi2_contingency(table).pvalue > 1e-4, (one, other)
    again = race_reference(p, noise, Purpose.RESIDUAL)
    table = np.zeros((4, 4))
    np.add.at(table, (again.numpy(), events["residual"].numpy()), 1)
    assert chi2_contingency(table).pvalue < 1e-4, "this check sees draws that are not independent"
