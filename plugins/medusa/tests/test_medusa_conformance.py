"""The promises of every proposer and of lossless text, kept by random heads in each shape of draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from medusa_checkpoints import TARGET
from medusa_layouts import LAYOUTS, Layout

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

TREE = {"speculative_token_tree": "[(0,), (1,), (0, 0), (1, 0)]"}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHAPES: dict[str, tuple[Layout, dict[str, Any], int]] = {
    "chain": (LAYOUTS["old, torch file"], {}, 4),
    "chain of a cut head": (LAYOUTS["new, cut"], {}, 4),
    "drawn chain of fewer ids": (LAYOUTS["new, fewer ids"], DRAWN, 3),
    "tree": (LAYOUTS["new"], TREE, 4),
    "drawn tree": (LAYOUTS["new, cut"], {**TREE, **DRAWN}, 4),
    "named tree": (LAYOUTS["new"], {"speculative_token_tree": "mc_sim_7b_63"}, 63),
    "shared noise": (
        LAYOUTS["new, padded"],
        {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"},
        4,
    ),
}


class TestEveryShape(ProposerContract):
    @pytest.fixture(params=SHAPES)
    def shape(self, request):
        return SHAPES[request.param]

    @pytest.fixture
    def method(self):
        return "medusa"

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
        return "medusa"

    @pytest.fixture
    def options(self, tmp_path):
        layout, options, _ = SHAPES[self.shape]
        return {**options, "model": layout.save(tmp_path / "heads")}


class TestChain(Identity):
    shape = "chain"
    families = ("gemma3",)
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
