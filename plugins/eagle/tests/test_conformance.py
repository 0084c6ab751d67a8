"""The promises of every proposer and of lossless text, kept by random heads in each shape of draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import checkpoints
import pytest
from layouts import LAYOUTS, PARALLEL, TARGET, Layout

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

TREE = "[(0,), (1,), (0,0), (1,0)]"
HEADS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "chain": (LAYOUTS["eagle3"], {}),
    "static tree": (LAYOUTS["eagle3-qwen3"], {"speculative_token_tree": TREE}),
    "dynamic tree": (LAYOUTS["eagle3-norm-output"], {"tree_top_k": 3, "tree_depth": 4}),
    "parallel": (PARALLEL["peagle"], {}),
    "drawn tree": (
        LAYOUTS["eagle3"],
        {
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "standard",
            "speculative_token_tree": TREE,
        },
    ),
    "first generation": (LAYOUTS["eagle-fc-bias"], {}),
    "first generation, dynamic tree": (LAYOUTS["eagle-mistral"], {"tree_top_k": 2}),
}


class TestEveryShape(ProposerContract):
    @pytest.fixture(params=["chain", "static tree", "parallel", "drawn tree", "first generation, dynamic tree"])
    def kind(self, request):
        return request.param

    @pytest.fixture
    def method(self, kind):
        return HEADS[kind][0].method

    @pytest.fixture
    def options(self, kind, tmp_path) -> Mapping[str, Any]:
        layout, options = HEADS[kind]
        return {**options, "model": checkpoints.save(tmp_path / "head", layout.tensors, layout.settings)}

    @pytest.fixture
    def target(self) -> FakeTarget:
        return FakeTarget(TARGET)


class Identity(IdentityContract):
    """Two layers are enough, as the states before, between and behind them are three."""

    families: ClassVar = ("llama",)
    ks: ClassVar = (4,)
    max_tokens: ClassVar = 10
    kind: ClassVar[str]

    @pytest.fixture
    def method(self):
        return HEADS[self.kind][0].method

    @pytest.fixture
    def options(self, tmp_path):
        layout, options = HEADS[self.kind]
        states = {} if layout.method == "eagle" else {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        model = checkpoints.save(tmp_path / "head", layout.tensors, layout.settings)
        return {**options, **states, "model": model}


class TestChain(Identity):
    kind = "chain"
    families = ("gemma3",)


class TestStaticTree(Identity):
    kind = "static tree"


class TestDynamicTree(Identity):
    kind = "dynamic tree"


class TestParallel(Identity):
    kind = "parallel"


class TestFirstGeneration(Identity):
    kind = "first generation"
