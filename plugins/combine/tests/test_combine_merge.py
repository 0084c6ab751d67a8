"""The rule `merge`: one tree of the likeliest nodes of all parts, in both backends, and what is learnt of the parts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from specdec_plugin_combine.estimate import PRIOR_RATE
from specdec_plugin_combine.kernels.numba import Merger as Compiled
from specdec_plugin_combine.kernels.reference import Merger as Reference
from specdec_testing.kernel import KernelContract

BACKENDS = pytest.mark.parametrize(
    "backend", [pytest.param(Compiled, id="numba"), pytest.param(Reference, id="reference")]
)
CHAIN = None


def draft(tokens, parents=CHAIN, estimates=None):
    return (
        np.array(tokens, np.int32),
        None if parents is None else np.array(parents, np.int32),
        None if estimates is None else np.array(estimates, np.float32),
    )


def merged(merger, drafts, most):
    """Return what a merger makes of drafts: [(id, parent, part)], and chances; around it, nothing is written."""
    merger.clear()
    for part, own in enumerate(drafts):
        if own is not None and len(own[0]):
            merger.add(part, *own)
    out, confidence = np.full((3, most + 2), -7, np.int32), np.full(most + 2, -7, np.float32)
    count = merger.pick(most, out, confidence, 1)
    assert (out[:, 0] == -7).all() and (out[:, 1 + count :] == -7).all() and confidence[0] == -7
    return list(map(tuple, out[:, 1 : 1 + count].T.tolist())), confidence[1 : 1 + count].tolist()


def paths(nodes):
    found = []
    for token, parent, _ in nodes:
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def learn(merger, drafts, gained, times=1):
    for _ in range(times):
        merged(merger, drafts, 100)
        merger.compare(np.array(gained, np.int32))


@BACKENDS
def test_common_beginnings_are_shared_and_every_path_is_kept(backend):
    drafts = [draft([4, 5, 6]), draft([4, 5, 7]), draft([4, 8, 9], [-1, 0, -1])]
    nodes, _ = merged(backend(3), drafts, 100)
    assert sorted(paths(nodes)) == sorted({(4,), (4, 5), (4, 5, 6), (4, 5, 7), (4, 8), (9,)})
    assert nodes[0] == (4, -1, 0)
    assert len(nodes) == 6


@BACKENDS
def test_what_several_parts_drafted_and_what_a_better_part_drafted_comes_first(backend):
    drafts = [draft([1, 2, 3]), draft([4, 5, 6])]
    for better, tokens in ((0, [1, 2, 3]), (1, [4, 5, 6])):
        merger = backend(2)
        learn(merger, drafts, tokens, times=30)
        nodes, _ = merged(merger, drafts, 3)
        assert nodes == [(token, place - 1, better) for place, token in enumerate(tokens)]
    shared = [draft([1, 2]), draft([3, 4]), draft([3, 5])]
    assert merged(backend(3), shared, 1)[0] == [(3, -1, 1)]


@BACKENDS
def test_a_part_that_estimates_its_own_nodes_is_believed_until_they_turn_out_otherwise(backend):
    # By depth alone both siblings were as likely; the part says which one is.
    told, other = draft([7, 8, 9], [-1, -1, 1], [0.125, 0.825, 0.825 * 0.525]), draft([8, 6])
    nodes, chances = merged(backend(2), [told, other], 4)
    assert [token for token, _, _ in nodes] == [8, 6, 9, 7]
    first = 1 - (1 - 0.825) * (1 - PRIOR_RATE)
    np.testing.assert_allclose(chances, [first, first * PRIOR_RATE, first * 0.525, 0.125], rtol=1e-6)
    merger = backend(2)
    learn(merger, [told, other], [7], times=60)
    nodes, chances = merged(merger, [told, other], 4)
    assert nodes[0][0] == 7 and chances[0] > 0.9
    assert max(chances[1:]) < 0.1


@BACKENDS
def test_a_draft_is_compared_once(backend):
    once, twice, drafts = backend(2), backend(2), [draft([1, 2]), draft([1, 3, 4])]
    for merger in (once, twice):
        merged(merger, drafts, 3)
        merger.compare(np.array([1, 3, 9], np.int32))
    twice.compare(np.array([1, 3, 9], np.int32))
    assert merged(once, drafts, 3) == merged(twice, drafts, 3)


@BACKENDS
@pytest.mark.parametrize("seed", range(8))
def test_a_merged_tree_is_in_contract_and_every_larger_limit_only_adds_to_it(backend, seed):
    rng, merger = random.Random(seed), backend(3)
    for _ in range(4):
        drafts = random_drafts(rng)
        nodes, chances = merged(merger, drafts, 100)
        whole = paths(nodes)
        assert set(whole) == {path for own in drafts for path in paths(as_nodes(own))}
        assert len(set(whole)) == len(whole)
        assert chances == sorted(chances, reverse=True)
        for most in range(len(whole)):
            part, _ = merged(merger, drafts, most)
            assert part == nodes[:most]
            assert all(parent < node for node, (_, parent, _) in enumerate(part))
        learn(merger, drafts, [rng.randint(0, 3) for _ in range(3)])


def as_nodes(own):
    parents = range(-1, len(own[0]) - 1) if own[1] is None else own[1].tolist()
    return [(token, parent, 0) for token, parent in zip(own[0].tolist(), parents, strict=True)]


def random_drafts(rng, most=9):
    drafts = []
    for part in range(3):
        children: dict[tuple[int, int], float] = {}
        for node in range(rng.randint(0, most)):
            parent = len(children) - 1 if part == 0 else rng.randint(-1, len(children) - 1)
            before = 1.0 if parent < 0 else list(children.values())[parent]
            children.setdefault((parent, node % 4), before * rng.random())
        parents = CHAIN if part == 0 else [parent for parent, _ in children]
        estimates = None if part == 1 else list(children.values())
        drafts.append(draft([token for _, token in children], parents, estimates))
    return drafts


class TestMerger(KernelContract):
    """A call merges some steps of drafts, larger than the first room too, and learns from each."""

    tolerance = 1e-6

    @pytest.fixture
    def op(self):
        return "draft_merge"

    @pytest.fixture
    def cases(self):
        return [(seed, most) for seed in range(6) for most in (1, 15, 200)]

    def call(self, kernel, arguments):
        seed, most = arguments
        rng, merger = random.Random(seed), kernel(3)
        made = []
        for _ in range(12):
            nodes, chances = merged(merger, random_drafts(rng, 90), most)
            made += [*np.array(nodes, np.int32).reshape(-1).tolist(), *chances]
            merger.compare(np.array([rng.randint(0, 3) for _ in range(4)], np.int32))
        return np.array(made)
