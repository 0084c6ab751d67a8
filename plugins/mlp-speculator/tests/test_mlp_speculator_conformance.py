"""The promises of every proposer and of lossless text, kept by random speculators in each shape of draft."""

from __future__ import annotations

import pytest
from mlp_speculator_checkpoints import TARGET, lstm_config, lstm_tensors
from mlp_speculator_layouts import LAYOUTS

from specdec_testing.layouts import Layout, LayoutContract, LayoutIdentity, Shape

OWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
LSTM = Layout(None, lstm_tensors(seed=8), lstm_config())
SHAPES = {
    "chain": Shape(LAYOUTS["plain"], 3),
    "chain of tied heads": Shape(LAYOUTS["tied, stored once"], 4),
    "drawn chain": Shape(LAYOUTS["fewer ids"], 3, OWN),
    "shared noise": Shape(LAYOUTS["scaled input"], 3, SHARED),
    "tree": Shape(LAYOUTS["padded"], 6, {"n_candidates": 4}),
    "LSTM": Shape(LSTM, 3),
    "LSTM, drawn": Shape(LSTM, 3, OWN),
    "LSTM, shared noise": Shape(LSTM, 3, SHARED),
}


class Method:
    @pytest.fixture
    def method(self):
        return "mlp_speculator"


class TestEveryShape(Method, LayoutContract):
    shapes, model = SHAPES, TARGET


class TestChain(Method, LayoutIdentity):
    shape = SHAPES["chain"]
    families = ("gemma3",)
    ks = (3,)


class TestTree(Method, LayoutIdentity):
    shape = SHAPES["tree"]
    ks = (10,)


class TestSharedNoise(Method, LayoutIdentity):
    shape = SHAPES["shared noise"]
    ks = (3,)


class TestLstm(Method, LayoutIdentity):
    shape = SHAPES["LSTM"]
    ks = (3,)


class TestLstmSharedNoise(Method, LayoutIdentity):
    shape = SHAPES["LSTM, shared noise"]
    ks = (3,)
