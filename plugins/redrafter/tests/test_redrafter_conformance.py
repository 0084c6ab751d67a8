"""The promises of every proposer and of lossless text, kept by random drafters in each shape of draft."""

from __future__ import annotations

import pytest
from redrafter_checkpoints import TARGET
from redrafter_layouts import LAYOUTS

from specdec_testing.layouts import LayoutContract, LayoutIdentity, Shape

BEAMS = {"num_beams": 3, "beam_depth": 3}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SHAPES = {
    "chain": Shape(LAYOUTS["recurrent"], 4),
    "beams": Shape(LAYOUTS["recurrent"], 9, BEAMS),
    "best beam": Shape(LAYOUTS["projected"], 3, {**BEAMS, "verified_beams": 1}),
    "beams cut": Shape(LAYOUTS["sums"], 4, BEAMS),
    "drawn chain of fewer ids": Shape(LAYOUTS["fewer ids"], 3, DRAWN),
    "shared noise": Shape(LAYOUTS["padded"], 4, SHARED),
}


class Method:
    @pytest.fixture
    def method(self):
        return "redrafter"


class TestEveryShape(Method, LayoutContract):
    shapes, model = SHAPES, TARGET


class TestChain(Method, LayoutIdentity):
    shape = SHAPES["chain"]
    ks = (4,)


class TestBeams(Method, LayoutIdentity):
    shape = SHAPES["beams"]
    ks = (9,)


class TestSharedNoise(Method, LayoutIdentity):
    shape = SHAPES["shared noise"]
    ks = (3,)
