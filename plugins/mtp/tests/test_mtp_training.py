"""Training of one recursive MTP layer: what the kit promises of trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from specdec_testing.fakes import FakeTarget
from specdec_testing.trainer import TrainerContract


class TestMtpTrainer(TrainerContract):
    @pytest.fixture
    def method(self) -> str:
        return "mtp"

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        return {"dtype": "float32", "loss_vocab": 48, "intermediate": 40}

    @pytest.fixture
    def aux_layers(self, target: FakeTarget) -> tuple[int, ...]:
        """Return the state that leaves the last layer, which the proposer reads."""
        return (target.info.num_layers,)
