"""The promises of every proposer and of lossless text, kept by random heads of both methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from dflash_layouts import EVERY as FIRST
from dflash_layouts import TARGET
from second_layouts import SECONDS

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash": ("dflash: standard", {}),
    "dflash, windows": ("dflash: mixed types", {}),
    "dflash, drawn": ("dflash: small vocabulary", DRAWN),
    "dflash, shared noise": ("dflash: sinks and windows", SHARED),
    "dspark": ("dspark: confidence", {}),
    "dspark, filling in": ("dspark: small vocabulary, filling in", {}),
    "dspark, drawn": ("dspark: candidates by config", DRAWN),
    "dspark, cut": ("dspark: confidence with Markov", {"confidence_threshold": 0.5}),
    "selector": ("DFlash2", {}),
    "selector, drawn": ("DFlash2, factors", DRAWN),
    "lattice": ("LiLiCorr, narrower, convolutions", {}),
    "lattice, shared noise": ("LiLiCorr", SHARED),
    "domino": ("Domino, shifted", {}),
    "domino, drawn": ("Domino", DRAWN),
}
EVERY = {**FIRST, **SECONDS}


class TestEveryKind(ProposerContract):
    @pytest.fixture(params=list(KINDS))
    def kind(self, request):
        return request.param

    @pytest.fixture
    def method(self, kind):
        return EVERY[KINDS[kind][0]].method

    @pytest.fixture
    def options(self, kind, tmp_path) -> Mapping[str, Any]:
        name, options = KINDS[kind]
        return {**options, "model": EVERY[name].save(tmp_path / "head")}

    @pytest.fixture
    def target(self) -> FakeTarget:
        return FakeTarget(TARGET)


class Identity(IdentityContract):
    """Targets of two layers have three states, which the heads are told to read."""

    families: ClassVar = ("llama",)
    ks: ClassVar = (4,)
    max_tokens: ClassVar = 10
    kind: ClassVar[str]

    @pytest.fixture
    def method(self):
        return EVERY[KINDS[self.kind][0]].method

    @pytest.fixture
    def options(self, tmp_path):
        name, options = KINDS[self.kind]
        layout = EVERY[name]
        settings = {**layout.settings, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        return {**options, "model": type(layout)(**{**vars(layout), "settings": settings}).save(tmp_path / "head")}


class TestBlock(Identity):
    kind = "dflash"
    families = ("gemma3",)


class TestWindows(Identity):
    kind = "dflash, windows"


class TestSharedNoise(Identity):
    kind = "dflash, shared noise"


class TestChainOverTheBlock(Identity):
    kind = "dspark"


class TestFillingIn(Identity):
    kind = "dspark, filling in"


class TestCut(Identity):
    kind = "dspark, cut"


class TestSelector(Identity):
    kind = "selector"


class TestLattice(Identity):
    kind = "lattice, shared noise"
    families = ("qwen3",)


class TestDomino(Identity):
    kind = "domino"
