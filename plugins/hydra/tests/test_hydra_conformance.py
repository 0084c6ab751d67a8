"""The promises of every proposer and of lossless text, kept by random heads in each shape of draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hydra_checkpoints import TARGET
from hydra_layouts import LAYOUTS, Layout

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

TREE = {"speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SHAPES: dict[str, tuple[Layout, dict[str, Any], int]] = {
    "prefix chain": (LAYOUTS["prefix-mlp"], {}, 4),
    "tree": (LAYOUTS["mlp"], TREE, 4),
    "chain": (LAYOUTS["mlp"], {}, 4),
    "chain of an earlier state": (LAYOUTS["mlp, an earlier state"], {}, 3),
    "drawn chain of fewer ids": (LAYOUTS["mlp, fewer ids"], DRAWN, 3),
    "drawn prefix tree": (LAYOUTS["prefix-mlp"], {**TREE, **DRAWN}, 4),
    "named tree": (LAYOUTS["mlp"], {"speculative_token_tree": "mc_sim_7b_63"}, 63),
    "shared noise": (LAYOUTS["mlp, padded"], SHARED, 4),
}


class TestEveryShape(ProposerContract):
    @pytest.fixture(params=SHAPES)
    def shape(self, request):
        return SHAPES[request.param]

    @pytest.fixture
    def method(self):
        return "hydra"

    @pytest.fixture
    def k(self, shape):
        return shape[2]

    @pytest.fixture
    def options(self, shape, tmp_path) -> Mapping[str, Any]:
        return {**shape[1], "model": shape[0].save(tmp_path / "heads")}

    @pytest.fixture
    def target(self) -> FakeTarget:
        return FakeTarget(TARGET)


class Identity(IdentityContract):
    families: ClassVar = ("llama",)
    max_tokens: ClassVar = 10
    shape: ClassVar[str]

    @pytest.fixture
    def method(self):
        return "hydra"

    @pytest.fixture
    def options(self, tmp_path):
        layout, options, _ = SHAPES[self.shape]
        return {**options, "model": layout.save(tmp_path / "heads")}


class TestPrefixChain(Identity):
    shape = "prefix chain"
    ks = (4,)


class TestTree(Identity):
    shape = "tree"
    ks = (4,)


class TestNamedTree(Identity):
    shape = "named tree"
    ks = (63,)


class TestSharedNoise(Identity):
    shape = "shared noise"
    ks = (3,)
