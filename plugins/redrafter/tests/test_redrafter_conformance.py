"""The promises of every proposer and of lossless text, kept by random drafters in each shape of draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from redrafter_checkpoints import TARGET
from redrafter_layouts import LAYOUTS, Layout

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

BEAMS = {"num_beams": 3, "beam_depth": 3}
DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SHAPES: dict[str, tuple[Layout, dict[str, Any], int]] = {
    "chain": (LAYOUTS["recurrent"], {}, 4),
    "beams": (LAYOUTS["recurrent"], BEAMS, 9),
    "best beam": (LAYOUTS["projected"], {**BEAMS, "verified_beams": 1}, 3),
    "beams cut": (LAYOUTS["sums"], BEAMS, 4),
    "drawn chain of fewer ids": (LAYOUTS["fewer ids"], DRAWN, 3),
    "shared noise": (LAYOUTS["padded"], SHARED, 4),
}


class TestEveryShape(ProposerContract):
    @pytest.fixture(params=SHAPES)
    def shape(self, request):
        return SHAPES[request.param]

    @pytest.fixture
    def method(self):
        return "redrafter"

    @pytest.fixture
    def k(self, shape):
        return shape[2]

    @pytest.fixture
    def options(self, shape, tmp_path) -> Mapping[str, Any]:
        return {**shape[1], "model": shape[0].save(tmp_path / "drafter")}

    @pytest.fixture
    def target(self) -> FakeTarget:
        return FakeTarget(TARGET)


class Identity(IdentityContract):
    families: ClassVar = ("llama",)
    max_tokens: ClassVar = 10
    shape: ClassVar[str]

    @pytest.fixture
    def method(self):
        return "redrafter"

    @pytest.fixture
    def options(self, tmp_path):
        layout, options, _ = SHAPES[self.shape]
        return {**options, "model": layout.save(tmp_path / "drafter")}


class TestChain(Identity):
    shape = "chain"
    ks = (4,)


class TestBeams(Identity):
    shape = "beams"
    ks = (9,)


class TestSharedNoise(Identity):
    shape = "shared noise"
    ks = (3,)
