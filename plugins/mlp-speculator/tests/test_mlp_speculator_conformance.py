"""The promises of every proposer and of lossless text, kept by random speculators in each shape of draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from mlp_speculator_checkpoints import TARGET, lstm_config, lstm_tensors, random_weights
from mlp_speculator_layouts import LAYOUTS, Layout

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

DRAWN = {"draft_sample_method": "probabilistic"}
LSTM = Layout(random_weights(), lstm_tensors(seed=8), lstm_config())  # the weights are another kind's, and unused
SHAPES: dict[str, tuple[Layout, dict[str, Any], int]] = {
    "chain": (LAYOUTS["plain"], {}, 3),
    "chain of tied heads": (LAYOUTS["tied, stored once"], {}, 4),
    "drawn chain": (LAYOUTS["fewer ids"], {**DRAWN, "rejection_sample_method": "standard"}, 3),
    "shared noise": (LAYOUTS["scaled input"], {**DRAWN, "rejection_sample_method": "coupled"}, 3),
    "tree": (LAYOUTS["padded"], {"n_candidates": 4}, 6),
    "LSTM": (LSTM, {}, 3),
    "LSTM, drawn": (LSTM, {**DRAWN, "rejection_sample_method": "standard"}, 3),
    "LSTM, shared noise": (LSTM, {**DRAWN, "rejection_sample_method": "coupled"}, 3),
}


class TestEveryShape(ProposerContract):
    @pytest.fixture(params=SHAPES)
    def shape(self, request):
        return SHAPES[request.param]

    @pytest.fixture
    def method(self):
        return "mlp_speculator"

    @pytest.fixture
    def k(self, shape):
        return shape[2]

    @pytest.fixture
    def options(self, shape, tmp_path) -> Mapping[str, Any]:
        return {**shape[1], "model": shape[0].save(tmp_path / "speculator")}

    @pytest.fixture
    def target(self) -> FakeTarget:
        return FakeTarget(TARGET)


class Identity(IdentityContract):
    families: ClassVar = ("llama",)
    ks: ClassVar = (3,)
    max_tokens: ClassVar = 10
    shape: ClassVar[str]

    @pytest.fixture
    def method(self):
        return "mlp_speculator"

    @pytest.fixture
    def options(self, tmp_path):
        layout, options, _ = SHAPES[self.shape]
        return {**options, "model": layout.save(tmp_path / "speculator")}


class TestChain(Identity):
    shape = "chain"
    families = ("gemma3",)


class TestTree(Identity):
    shape = "tree"
    ks = (10,)


class TestSharedNoise(Identity):
    shape = "shared noise"


class TestLstm(Identity):
    shape = "LSTM"


class TestLstmSharedNoise(Identity):
    shape = "LSTM, shared noise"
