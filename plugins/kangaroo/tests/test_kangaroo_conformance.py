"""The promises of every proposer and of lossless text, kept by random adapters in each shape of draft."""

from __future__ import annotations

from typing import ClassVar

import pytest
from kangaroo_adapters import EXIT, LAYOUTS, TARGET

from specdec_testing.layouts import LayoutContract, LayoutIdentity, Shape

FULL = {"exit_layer": EXIT, "draft_confidence_threshold": None}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SHAPES = {
    "chain": Shape(LAYOUTS["published"], 4, FULL),
    "stopped chain": Shape(LAYOUTS["grouped"], 6, {"exit_layer": 1}),
    "drawn chain": Shape(LAYOUTS["grouped"], 4, {**FULL, **DRAWN}),
    "two layers, shared noise": Shape(LAYOUTS["two layers"], 4, {**FULL, **SHARED, "exit_layer": 3}),
}


class Method:
    @pytest.fixture
    def method(self):
        return "kangaroo"


class TestEveryShape(Method, LayoutContract):
    shapes, model = SHAPES, TARGET


class TestChain(Method, LayoutIdentity):
    shape = Shape(LAYOUTS["published"], 4, {**FULL, "exit_layer": 1})
    ks: ClassVar = (1, 4, 6)


class TestSharedNoise(Method, LayoutIdentity):
    shape = Shape(LAYOUTS["grouped"], 3, {**FULL, **SHARED, "exit_layer": 1})
    ks: ClassVar = (3,)
