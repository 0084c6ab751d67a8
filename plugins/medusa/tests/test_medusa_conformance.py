"""The promises of every proposer and of lossless text, kept by random heads in each shape of draft."""

from __future__ import annotations

import pytest
from medusa_checkpoints import TARGET
from medusa_layouts import LAYOUTS

from specdec_testing.layouts import LayoutContract, LayoutIdentity, Shape

TREE = {"speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SHAPES = {
    "chain": Shape(LAYOUTS["old, torch file"], 4),
    "chain of a cut head": Shape(LAYOUTS["new, cut"], 4),
    "drawn chain of fewer ids": Shape(LAYOUTS["new, fewer ids"], 3, DRAWN),
    "tree": Shape(LAYOUTS["new"], 4, TREE),
    "drawn tree": Shape(LAYOUTS["new, cut"], 4, {**TREE, **DRAWN}),
    "named tree": Shape(LAYOUTS["new"], 63, {"speculative_token_tree": "mc_sim_7b_63"}),
    "shared noise": Shape(LAYOUTS["new, padded"], 4, SHARED),
}


class Method:
    @pytest.fixture
    def method(self):
        return "medusa"


class TestEveryShape(Method, LayoutContract):
    shapes, model = SHAPES, TARGET


class TestChain(Method, LayoutIdentity):
    shape = SHAPES["chain"]
    families = ("gemma3",)
    ks = (4,)


class TestTree(Method, LayoutIdentity):
    shape = SHAPES["tree"]
    ks = (4,)


class TestNamedTree(Method, LayoutIdentity):
    shape = SHAPES["named tree"]
    ks = (63,)


class TestSharedNoise(Method, LayoutIdentity):
    shape = SHAPES["shared noise"]
    ks = (3,)
