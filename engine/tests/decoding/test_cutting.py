"""Cutting drafts never changes what is said: the output's distribution, added up over drafts and decisions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_engine.decoding.cutting import cut
from specdec_testing.table import random_table

VOCAB = 4
NEWEST = 0
P = random_table(VOCAB, seed=1)
Q = random_table(VOCAB, seed=2)
Path = tuple[int, ...]
Distribution = dict[Path, float]
Children = dict[Path, list[tuple[int, bool]]]


def legal_after(path: Path) -> list[int]:
    """A small rule that depends on the whole path: two of four ids, others after an odd sum."""
    return [0, 1] if sum(path) % 2 else [1, 2, 3]


def legal(ids: np.ndarray) -> int:
    path: Path = ()
    for token in ids.tolist():
        if token not in legal_after(path):
            break
        path += (token,)
    return len(path)


def p_after(path: Path) -> np.ndarray:
    """The target's distribution after a path, the forbidden ids without a chance."""
    masked = np.zeros(VOCAB)
    masked[legal_after(path)] = P[(NEWEST, *path)[-1]][legal_after(path)]
    return masked / masked.sum()


def q_after(path: Path) -> np.ndarray:
    return Q[(NEWEST, *path)[-1]]


def plain(length: int, path: Path = ()) -> Distribution:
    """The distribution of what plain decoding says."""
    distribution: Distribution = {(): 1.0}
    for _ in range(length):
        distribution = {
            (*said, v): w * p_after((*path, *said))[v]
            for said, w in distribution.items()
            for v in legal_after(path + said)
        }
    return distribution


def add(distribution: Distribution, said: Path, weight: float, length: int) -> None:
    """Add outputs that begin with what a step said and go on plainly."""
    if weight > 0:
        for rest, w in plain(max(0, length - len(said)), said).items():
            distribution[(*said, *rest)[:length]] += weight * w


def nodes_of(draft: Draft) -> Children:
    """The children of each path, in order, and whether each is soft."""
    children: Children = defaultdict(list)
    paths: list[Path] = []
    for node, token in enumerate(draft.tokens.tolist()):
        parent = node - 1 if draft.parents is None else int(draft.parents[node])
        at = paths[parent] if parent >= 0 else ()
        children[at].append((token, draft.q_row is not None and bool(draft.q_row[node] >= 0)))
        paths.append((*at, token))
    return children


def walk(children: Children, at: Path) -> Iterator[tuple[Path, float]]:
    """Yield what the tree rule says from a node on, with its probability: children in turn, else the residual.

    Soft siblings are drawn without the ones before them; others are point masses. A chain is a tree of one path, for
    which this is the standard rule.
    """
    p, q, alive = p_after(at), q_after(at).copy(), 1.0
    for child, soft in children.get(at, ()):
        distribution = q if soft else np.eye(VOCAB)[child]
        accept = min(1.0, p[child] / distribution[child])
        for said, weight in walk(children, (*at, child)) if accept > 0 else ():
            yield said, alive * accept * weight
        alive *= 1 - accept
        if alive < 1e-12:
            return
        p = np.maximum(p - distribution, 0)
        p = p / p.sum()
        q[child] = 0
        q = q / q.sum()
    for token in np.flatnonzero(p):
        yield (*at, int(token)), alive * p[token]


def blocks(children: Children, at: Path) -> Iterator[tuple[Path, float]]:
    """Yield what block verification says of a soft chain, with its probability."""
    chain: list[int] = []
    while tuple(chain) in children:
        chain += [token for token, _ in children[tuple(chain)]]
    b, rest, h = [1.0], [], [1.0]
    for i, token in enumerate((*chain, None)):
        p, q = p_after(tuple(chain[:i])), q_after(tuple(chain[:i]))
        rest.append(p if token is None else np.maximum(b[i] * p - q, 0))
        if i and token is not None:
            mass = rest[i].sum()
            h.append(mass / (mass + 1 - b[i]) if mass + 1 - b[i] > 0 else 1.0)
        elif i:
            h.append(b[i])
        if token is not None:
            b.append(min(1.0, b[i] * p[token] / q[token]))
    weight = 1.0
    for i in reversed(range(len(chain) + 1)):
        for token in np.flatnonzero(rest[i]) if h[i] > 0 else ():
            yield (*chain[:i], int(token)), weight * h[i] * rest[i][token] / rest[i].sum()
        weight *= 1 - h[i]


def soft_chains() -> Iterator[tuple[Draft, float]]:
    for ids in itertools.product(range(VOCAB), repeat=2):
        draft = Draft.of([ids])
        draft.q, draft.q_row = torch.eye(VOCAB), np.zeros(2, np.int32)
        yield draft, q_after(())[ids[0]] * q_after(ids[:1])[ids[1]]


def soft_trees() -> Iterator[tuple[Draft, float]]:
    """Two children of the newest id, drawn without replacement, and one child of each."""
    for a, b in itertools.permutations(range(VOCAB), 2):
        pair = q_after(())[a] * q_after(())[b] / (1 - q_after(())[a])
        for c, d in itertools.product(range(VOCAB), repeat=2):
            draft = Draft([4], np.array([a, b, c, d], np.int32), np.array([-1, -1, 0, 1], np.int32))
            draft.q, draft.q_row = torch.eye(VOCAB), np.zeros(4, np.int32)
            yield draft, pair * q_after((a,))[c] * q_after((b,))[d]


def mixed_trees() -> Iterator[tuple[Draft, float]]:
    """A point mass on an illegal id, and beside it a soft child that was drawn without it."""
    without = q_after(()).copy()
    without[0] = 0
    without /= without.sum()
    for a, b in itertools.product(range(1, VOCAB), range(VOCAB)):
        draft = Draft([3], np.array([0, a, b], np.int32), np.array([-1, -1, 1], np.int32))
        draft.q, draft.q_row = torch.eye(VOCAB), np.array([-1, 0, 0], np.int32)
        yield draft, without[a] * q_after((a,))[b]


def fixed(draft: Draft) -> Callable[[], Iterator[tuple[Draft, float]]]:
    def one() -> Iterator[tuple[Draft, float]]:
        yield draft, 1.0

    return one


def output_distribution(
    drafts: Callable[[], Iterator[tuple[Draft, float]]], *, exact: bool, rule: Any = walk
) -> Distribution:
    distribution: Distribution = defaultdict(float)
    for draft, chance in drafts():
        children = nodes_of(cut(draft, [legal], exact=exact))
        for said, weight in rule(children, ()):
            add(distribution, said, chance * weight, 3)
    return distribution


def distance(distribution: Distribution) -> float:
    expected = plain(3)
    assert sum(distribution.values()) == pytest.approx(1)
    return sum(abs(distribution.get(said, 0) - expected.get(said, 0)) for said in {*distribution, *expected})


@pytest.mark.parametrize(
    ("drafts", "rule"), [(soft_chains, walk), (soft_trees, walk), (mixed_trees, walk), (soft_chains, blocks)]
)
def test_soft_drafts_keep_the_distribution_because_the_illegal_id_itself_stays(drafts: Any, rule: Any) -> None:
    assert distance(output_distribution(drafts, exact=True, rule=rule)) < 1e-12
    assert distance(output_distribution(drafts, exact=False, rule=rule)) > 0.02, (
        "dropping an id for its value would be seen"
    )


def test_point_masses_keep_the_distribution_when_the_illegal_id_goes() -> None:
    for ids in itertools.product(range(VOCAB), repeat=3):
        assert distance(output_distribution(fixed(Draft.of([ids])), exact=True)) < 1e-12
    tree = Draft([5], np.array([0, 1, 3, 0, 2], np.int32), np.array([-1, -1, -1, 1, 1], np.int32))
    assert distance(output_distribution(fixed(tree), exact=True)) < 1e-12


def test_what_is_cut_is_the_illegal_id_and_all_behind_it() -> None:
    chains = [Draft.of([[1, 1, 3], [0, 1], [], [2, 3, 2]]), Draft.of([[1, 1, 3], [0, 1], [], [2, 3, 2]])]
    chains[1].q, chains[1].q_row = torch.eye(VOCAB), np.zeros(8, np.int32)
    rules = [legal, legal, legal, None]
    assert cut(chains[0], rules, exact=True).lengths == [3, 0, 0, 3]
    assert cut(Draft.of([[1, 2, 3]]), [legal], exact=True).tokens.tolist() == [1]
    assert cut(chains[1], rules, exact=True).lengths == [3, 1, 0, 3]
    assert cut(chains[1], rules, exact=False).lengths == [3, 0, 0, 3]
    mixed = Draft.of([[1, 2, 3]])
    mixed.q, mixed.q_row = torch.eye(VOCAB), np.array([0, -1, 0], np.int32)
    assert cut(mixed, [legal], exact=True).tokens.tolist() == [1], "a point mass in a soft chain goes"


def test_a_tree_loses_whole_branches_and_keeps_soft_leaves() -> None:
    #      0 (illegal)   1        2 (legal)
    #      |            / \
    #      1        0   3 (illegal)
    #                   |
    #                   2
    tokens = np.array([0, 1, 2, 1, 0, 3, 2], np.int32)
    parents = np.array([-1, -1, -1, 0, 1, 1, 5], np.int32)
    hard = cut(Draft([7], tokens, parents), [legal], exact=True)
    assert (hard.tokens.tolist(), hard.parents.tolist()) == ([1, 2, 0], [-1, -1, 0])
    soft = Draft([7], tokens, parents, q=torch.eye(VOCAB), q_row=np.zeros(7, np.int32))
    kept = cut(soft, [legal], exact=True)
    assert (kept.tokens.tolist(), kept.parents.tolist()) == ([0, 1, 2, 0, 3], [-1, -1, -1, 1, 1])


def test_without_rules_nothing_is_touched() -> None:
    draft = Draft.of([[0, 0], [3]])
    assert cut(draft, [None, None], exact=True) is draft
    assert cut(Draft.empty(2), [legal, None], exact=True).lengths == [0, 0]
