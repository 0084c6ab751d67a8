"""The promises of every proposer and of lossless text, kept by random Gemma 4 assistants."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
import transformers
from assistant_models import assistant, layout, target

from specdec_testing.layouts import LayoutContract, LayoutIdentity, Shape

DRAWN = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
SHARED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "coupled"}
SAVED = layout(assistant())
SHAPES = {
    "chain": Shape(SAVED, 4),
    "at the newest id, drawn": Shape(SAVED, 4, {**DRAWN, "assistant_position": "newest"}),
    "shared noise": Shape(SAVED, 4, SHARED),
}


class Method:
    @pytest.fixture
    def method(self):
        return "mtp"


class TestEveryShape(Method, LayoutContract):
    shapes, model = SHAPES, target()


class OfGemma(Method, LayoutIdentity, promises=True):
    families: ClassVar = ("gemma4",)

    def target(self, family: str, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
        return target("own keys", dtype)


class TestChain(OfGemma):
    shape = SHAPES["chain"]
    ks: ClassVar = (1, 4)


class TestSharedNoise(OfGemma):
    shape = SHAPES["shared noise"]
    ks: ClassVar = (3,)
