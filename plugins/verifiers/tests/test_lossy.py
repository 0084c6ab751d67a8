"""`synthetic` accepts at the rates that it was given, `typical` what is likely enough; what follows is as they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_core.noise import Noise
from specdec_plugin_verifiers.synthetic import Synthetic
from specdec_plugin_verifiers.typical import Typical
from specdec_testing.goodness_of_fit import assert_follows

ROWS, K = 54_000, 3
P = torch.tensor([0.5, 0.3, 0.15, 0.05])
Q = torch.tensor([0.1, 0.2, 0.3, 0.4])
RATES = (0.9, 0.6, 0.15)


def call(kind, greedy=False):
    """ROWS rows of K drafts of which none depends on another; every logits row has the distribution P."""
    rng = np.random.default_rng(1)
    keys = np.repeat(rng.integers(0, 2**63, ROWS).astype(np.uint64), K + 1)
    noise = Noise(keys, np.tile(np.arange(5, 6 + K, dtype=np.int32), ROWS), np.zeros(len(keys), np.int32))
    drafted = {"likely": 0, "unlikely": 3}.get(kind)
    tokens = rng.choice(4, ROWS * K, p=Q.numpy()) if drafted is None else np.full(ROWS * K, drafted)
    draft = Draft([K] * ROWS, tokens.astype(np.int32))
    if kind == "soft":
        draft.q, draft.q_row = Q[None], np.zeros(ROWS * K, np.int32)
    logits = P.log().repeat(len(keys), 1)
    return draft, logits, noise, None, np.full(ROWS, greedy)


def lasts(verdict, accepted):
    """Ids that end the rows with so many accepted drafts."""
    ends = np.cumsum(verdict.accepted + 1) - 1
    return np.bincount(verdict.emitted[ends[verdict.accepted == accepted]], minlength=4)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("kind", ["soft", "likely", "unlikely"])
def test_synthetic_accepts_at_its_rates_whatever_the_drafts(kind, greedy, kernels):
    verdict = Synthetic(kernels, RATES).verify(*call(kind, greedy))
    distribution = -np.diff([1.0, *RATES, 0.0])
    assert_follows(np.bincount(verdict.accepted, minlength=K + 1), distribution)


def test_synthetic_goes_on_after_a_rejection_as_standard_does(kernels):
    soft = Synthetic(kernels, RATES).verify(*call("soft"))
    residual = (P - Q).clamp_min(0)
    for accepted in range(K):
        assert_follows(lasts(soft, accepted), residual / residual.sum())
    assert_follows(lasts(soft, K), P)
    point = Synthetic(kernels, RATES).verify(*call("likely"))
    assert_follows(lasts(point, 0), torch.where(torch.arange(4) == 0, 0.0, P) / 0.5)


def test_synthetic_emits_the_most_likely_id_where_greedy_requests_reject(kernels):
    verdict = Synthetic(kernels, RATES).verify(*call("unlikely", greedy=True))
    ends = np.cumsum(verdict.accepted + 1) - 1
    assert (verdict.emitted[ends] == 0).all()
    assert (np.delete(verdict.emitted, ends) == 3).all()


def test_certain_and_impossible_rates(kernels):
    assert (Synthetic(kernels, (1.0,) * K).verify(*call("unlikely")).accepted == K).all()
    assert (Synthetic(kernels, (0.0,) * K).verify(*call("likely")).accepted == 0).all()
    assert (Synthetic(kernels, (1.0, 0.0, 0.0)).verify(*call("soft")).accepted == 1).all()


@pytest.mark.parametrize("kind", ["soft", "likely", "unlikely"])
def test_typical_accepts_up_to_the_first_that_is_not_likely_enough(kind, kernels):
    arguments = call(kind)
    verdict = Typical(kernels, 0.2, 10.0).verify(*arguments)
    stands = P[torch.from_numpy(arguments[0].tokens).long()].reshape(ROWS, K).numpy() > 0.2
    assert verdict.accepted.tolist() == np.logical_and.accumulate(stands, axis=1).sum(1).tolist()
    ends = np.cumsum(verdict.accepted + 1) - 1
    assert (verdict.emitted[ends[verdict.accepted < K]] == 0).all()
    if kind != "unlikely":
        assert_follows(lasts(verdict, K), P)


def test_typical_asks_for_less_where_the_target_is_undecided(kernels):
    arguments = call("unlikely")
    entropy = -(P * (P + 1e-5).log()).sum().item()
    just = 0.05 / np.exp(-entropy)  # alpha at which the least likely id is as likely as asked for
    assert (Typical(kernels, 1.0, just * 1.01).verify(*arguments).accepted == 0).all()
    assert (Typical(kernels, 1.0, just * 0.99).verify(*arguments).accepted == K).all()


def best_by_enumeration(draft, p, threshold, alpha, greedy):
    """Accepted nodes of each row: all paths of a tree, tried one by one in float64, by the words of the definition."""
    entropy = -(p * np.log(p + 1e-5)).sum(-1)
    bar = np.minimum(threshold, alpha * np.exp(-entropy))
    found, node, row = [], 0, 0
    for length, plain in zip(draft.lengths, greedy, strict=True):
        tokens, parents = draft.tokens[node : node + length], draft.parents[node : node + length]
        best = (0, 0.0, ())
        for leaf in range(length):
            path = [leaf]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            chances = [p[row + 1 + parents[n]][tokens[n]] for n in path]
            stands = [
                tokens[n] == p[row + 1 + parents[n]].argmax() if plain else chance > bar[row + 1 + parents[n]]
                for n, chance in zip(path, chances, strict=True)
            ]
            if all(stands):
                key = (len(path), np.log(chances).sum())
                if key[0] > best[0] or (key[0] == best[0] and key[1] > best[1] + 1e-9):
                    best = (*key, tuple(path))
        found.append(best[2])
        node, row = node + length, row + length + 1
    return found


@pytest.mark.parametrize("greedy", [False, True])
def test_typical_takes_the_longest_likely_path_of_a_tree_and_the_likelier_of_two(greedy, kernels):
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 14, 300).tolist()
    tokens, parents = [], []
    for length in lengths:
        above = [-1] + [int(rng.integers(-1, i)) for i in range(1, length)]
        free = {parent: list(rng.permutation(16)) for parent in range(-1, length)}  # siblings differ
        tokens += [free[parent].pop() for parent in above[:length]]
        parents += above[:length]
    draft = Draft(lengths, np.array(tokens, np.int32), parents=np.array(parents, np.int32))
    rows = len(tokens) + len(lengths)
    logits = torch.from_numpy(rng.normal(size=(rows, 16))).float()
    keys = np.zeros(rows, np.uint64)
    noise = Noise(keys, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32))
    plain = np.full(300, greedy)
    plain[0] = False
    verdict = Typical(kernels, 0.05, 0.4).verify(draft, logits, noise, None, plain)
    p = torch.softmax(logits.double(), -1).numpy()
    expected = best_by_enumeration(draft, p, 0.05, 0.4, plain)
    ends = np.cumsum(verdict.accepted)
    paths = [tuple(verdict.path[end - n : end].tolist()) for n, end in zip(verdict.accepted, ends, strict=True)]
    assert paths == expected
    assert len({len(path) for path in paths}) > (1 if greedy else 3), "the trees tell rules apart"
