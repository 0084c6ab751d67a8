"""The promises of every proposer and of lossless text, kept by random heads in each shape of draft."""

from __future__ import annotations

import pytest
from hydra_checkpoints import TARGET
from hydra_layouts import LAYOUTS

from specdec_testing.layouts import LayoutContract, LayoutIdentity, Shape

TREE = {"speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SHAPES = {
    "prefix chain": Shape(LAYOUTS["prefix-mlp"], 4),
    "tree": Shape(LAYOUTS["mlp"], 4, TREE),
    "chain": Shape(LAYOUTS["mlp"], 4),
    "chain of an earlier state": Shape(LAYOUTS["mlp, an earlier state"], 3),
    "drawn chain of fewer ids": Shape(LAYOUTS["mlp, fewer ids"], 3, DRAWN),
    "drawn prefix tree": Shape(LAYOUTS["prefix-mlp"], 4, {**TREE, **DRAWN}),
    "named tree": Shape(LAYOUTS["mlp"], 63, {"speculative_token_tree": "mc_sim_7b_63"}),
    "shared noise": Shape(LAYOUTS["mlp, padded"], 4, SHARED),
}


class Method:
    @pytest.fixture
    def method(self):
        return "hydra"


class TestEveryShape(Method, LayoutContract):
    shapes, model = SHAPES, TARGET


class TestPrefixChain(Method, LayoutIdentity):
    shape = SHAPES["prefix chain"]
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
