"""The stubs that draft trees keep the contract of proposers, hide what they promise, and do not change the text."""

import itertools

import numpy as np
import pytest

from specdec_testing.checking import draft_problems
from specdec_testing.contract import script_batch
from specdec_testing.driving import Driver
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract
from specdec_testing.stubs import stub_plugin
from specdec_testing.targets import tiny_target
from specdec_testing.trees import GarbageTree, PerfectTree, RaggedTree, TreeStub, anywhere, deep, grow, wide

VOCAB = 128
STUBS = {
    "garbage": lambda: GarbageTree(VOCAB),
    "deep garbage": lambda: GarbageTree(VOCAB, parent=deep),
    "ragged": lambda: RaggedTree(VOCAB),
    "perfect": lambda: PerfectTree(lambda request: [*request.tokens[request.prompt_len :], *range(40, 60)], VOCAB),
}


@pytest.mark.parametrize("parent", [anywhere, deep, wide])
def test_a_grown_tree_has_its_trunk_as_a_path_and_siblings_that_differ(parent):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        trunk = rng.integers(0, VOCAB, int(rng.integers(0, 9))).tolist()
        ids, parents = grow(rng, 8 + seed, VOCAB, parent, trunk)
        assert len(ids) == len(parents) == 8 + seed
        assert all(-1 <= p < node for node, p in enumerate(parents))
        assert len(set(zip(parents, ids, strict=True))) == len(ids)
        node = -1
        for token in trunk:
            node = next(i for i, (p, t) in enumerate(zip(parents, ids, strict=True)) if (p, t) == (node, token))


def test_nodes_come_in_many_orders_and_forms():
    rng = np.random.default_rng(0)
    grown = [grow(rng, 9, VOCAB, deep, trunk=range(5))[1] for _ in range(40)]
    assert len({tuple(parents) for parents in grown}) > 20
    assert any(p > q for parents in grown for p, q in itertools.pairwise(parents)), "not breadth first"


@pytest.mark.parametrize("name", STUBS)
def test_drafts_of_the_stubs_are_in_contract(name):
    target, stub = FakeTarget(tiny_target("llama")), STUBS[name]()
    driver = Driver(stub, stub.traits, target)
    for seed in range(2):
        driver.run(script_batch(8, seed, VOCAB, k=13))
    assert driver.problems == [] and driver.longest == 13


@pytest.mark.parametrize("name", STUBS)
def test_two_stubs_draft_the_same(name):
    drafts = []
    for _ in range(2):
        stub = STUBS[name]()
        drafts.append(Driver(stub, stub.traits, FakeTarget(tiny_target("llama"))).run(script_batch(5, 1, VOCAB, k=9)))
    assert drafts[0] == drafts[1]


def test_the_kit_sees_a_tree_out_of_contract():
    class Twins(TreeStub):
        def tree(self, batch, i):
            return ([5, 5], [-1, -1]) if batch.max_draft[i] > 1 else ([], [])

    class Backwards(TreeStub):
        def tree(self, batch, i):
            return ([5, 6], [1, -1]) if batch.max_draft[i] > 1 else ([], [])

    for stub, words in ((Twins(), "siblings with the same id"), (Backwards(), "come before their children")):
        driver = Driver(stub, stub.traits, FakeTarget(tiny_target("llama")))
        driver.run(script_batch(3, 0, VOCAB))
        assert any(words in problem for problem in driver.problems)
    assert draft_problems(None, None, TreeStub.traits, VOCAB) != []


def identity(make):
    """The kit's identity checks for a stub."""

    class Checks(IdentityContract):
        ks = (3, 13)

        @pytest.fixture
        def method(self):
            return "tree"

        @pytest.fixture
        def plugins(self):
            return {"tree": stub_plugin(lambda target: make(target.info.vocab_size), traits=TreeStub.traits)}

    return Checks


@pytest.mark.slow
class TestRaggedTreesDoNotChangeTheText(identity(RaggedTree)):
    pass


class TestGarbageTreesDoNotChangeTheText(identity(GarbageTree)):
    families = ("gpt_oss",)
