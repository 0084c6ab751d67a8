"""Training of Medusa heads: what the kit promises of trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from specdec_testing.trainer import TrainerContract


class TestMedusaTrainer(TrainerContract):
    @pytest.fixture
    def method(self) -> str:
        return "medusa"

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        return {"dtype": "float32", "draft_vocab": 48, "steps": 3}
