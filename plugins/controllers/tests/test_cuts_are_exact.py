"""Why the host lets point masses be cut and drawn drafts not: every outcome on a vocabulary of three, added up.

The first emitted id has the distribution p of the target if the draft is verified by `standard` (Leviathan et al.,
arXiv 2211.17192, appendix A), whatever cuts a point mass; a drawn draft that is cut for its own estimate breaks that.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_core.config.speculative import SpeculativeConfig
from specdec_core.draft import Draft
from specdec_core.host.budget import DraftBudget
from specdec_core.traits import MethodTraits

P = np.array([0.2, 0.5, 0.3])
Q = np.array([0.6, 0.3, 0.1])


def emitted(p, q, token, kept):
    """Return the distribution of the id emitted at a draft's place, the draft being `token`, drawn from q."""
    if not kept:
        return p
    accepted = min(1.0, p[token] / q[token])
    rest = np.maximum(p - q, 0)
    result = (1 - accepted) * (rest / rest.sum() if rest.sum() else p)
    result = result.copy()
    result[token] += accepted
    return result


@pytest.mark.parametrize("rule", list(itertools.product([False, True], repeat=3)))
def test_a_point_mass_may_be_cut_by_any_rule(rule):
    for token in range(3):
        one = np.eye(3)[token]
        np.testing.assert_allclose(emitted(P, one, token, rule[token]), P)


@pytest.mark.parametrize("rule", list(itertools.product([False, True], repeat=3)))
def test_a_drawn_draft_may_be_cut_only_by_what_does_not_depend_on_it(rule):
    found = sum(Q[token] * emitted(P, Q, token, rule[token]) for token in range(3))
    same = np.allclose(found, P)
    assert same == (len(set(rule)) == 1 or not changes(rule))


def changes(rule):
    """Return whether cutting by this rule moves probability, by what is emitted where it cuts and would not have."""
    shift = sum(Q[token] * (emitted(P, Q, token, True) - P) for token in range(3) if not rule[token])
    return bool(np.abs(shift).max() > 1e-12)


def test_cutting_the_unlikely_is_such_a_case():
    found = sum(Q[token] * emitted(P, Q, token, Q[token] > 0.2) for token in range(3))
    assert np.abs(found - P).max() > 0.01


class CutsAll:
    """Keeps `kept` drafts of what it is shown of a request."""

    def __init__(self, kept=0):
        self.kept = kept

    def limit(self, requests, k):
        return k

    def trim(self, requests, confidence):
        self.shown = [len(part) for part in confidence]
        self.estimates = [part.tolist() for part in confidence]
        return [min(self.kept, len(part)) for part in confidence]

    def observe(self, stats):
        """Nothing to learn."""


class Configured:
    method, num_speculative_tokens, max_model_len, config = "m", 4, 100, SpeculativeConfig()

    def __init__(self, shape="chain"):
        self.traits = MethodTraits(shape=shape)


def sure(count):
    return np.full(count, 0.9, np.float32)


def test_the_host_shows_rows_of_point_masses_alone():
    controller = CutsAll()
    budget = DraftBudget(Configured(), controller)
    requests = [SimpleNamespace(id=str(i)) for i in range(3)]
    draft = Draft([2, 0, 3], np.arange(5, dtype=np.int32), confidence=sure(5))
    assert budget.trim(requests, draft).lengths == [0, 0, 0]
    assert controller.shown == [2, 0, 3]
    drawn = Draft([2, 0, 3], np.arange(5, dtype=np.int32), q_row=np.array([-1, -1, -1, 0, -1], np.int32))
    drawn.q, drawn.confidence = object(), sure(5)
    assert budget.trim(requests, drawn).lengths == [0, 0, 3], "one of its drafts is drawn"
    assert controller.shown == [2, 0, 0]


@pytest.mark.parametrize(
    ("kept", "left"), [(0, []), (1, [8]), (2, [8, 7]), (3, [8, 6, 7]), (4, [8, 6, 7, 5]), (5, None)]
)
def test_of_a_tree_the_likeliest_nodes_stay_with_all_before_them(kept, left):
    # 8 (0.6) has 7 (0.5) behind it; 6 (0.3) has 5, which says 0.9 and is no likelier than 6, and 4 (0.1).
    tokens, parents = np.array([8, 6, 7, 5, 4], np.int32), np.array([-1, -1, 0, 1, 1], np.int32)
    estimates = np.array([0.6, 0.3, 0.5, 0.9, 0.1], np.float32)
    controller = CutsAll(kept)
    tree = Draft([5], tokens, parents=parents, confidence=estimates)
    cut = DraftBudget(Configured("tree"), controller).trim([SimpleNamespace(id="a")], tree)
    np.testing.assert_allclose(controller.estimates, [[0.6, 0.3, 0.5, 0.3, 0.1]], rtol=1e-6)
    assert cut.tokens.tolist() == (tokens.tolist() if left is None else left)
    cut.check([5], 10, MethodTraits(shape="tree"))


def test_drafts_without_estimates_are_left_as_they_are():
    controller = CutsAll()
    requests = [SimpleNamespace(id="a")]
    bare = Draft([2], np.arange(2, dtype=np.int32))
    assert DraftBudget(Configured(), controller).trim(requests, bare).lengths == [2]
    tree = Draft([2], np.arange(2, dtype=np.int32), parents=np.array([-1, -1], np.int32))
    assert DraftBudget(Configured("tree"), controller).trim(requests, tree).lengths == [2]
