"""The promises of every proposer and of lossless text, kept by draft models in each way of drafting."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from draft_model_folders import METHOD, patch, saved
from draft_model_tokenizers import byte_level, metaspace, numbered

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract
from specdec_testing.targets import tiny_target

DRAWN = {"draft_sample_method": "probabilistic"}
MAPPED = {"use_heterogeneous_vocab": True}
TEXT = {**MAPPED, "heterogeneous_vocab_method": "text"}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn with the target's noise": {**DRAWN, "rejection_sample_method": "coupled"},
    "in one pass": {"parallel_drafting": True},
    "shared tokens, drawn": {**MAPPED, **DRAWN, "rejection_sample_method": "block"},
    "texts": TEXT,
}
SIZE = 400


@functools.cache
def tokenizers(way: str) -> tuple[Any, Any]:
    """The target's and the drafter's: the same words, the same words in another order, or two kinds of pieces."""
    if way == "texts":
        return byte_level(SIZE), metaspace()
    words = [f"w{i}" for i in range(128)]
    own = numbered(words[64:] + words[:40] + ["unk"], unk="unk") if way.startswith("shared") else numbered(words)
    return numbered(words), own


def target(way: str, family: str = "llama", **more: Any) -> Any:
    """A tiny target with as many ids as its tokenizer."""
    return tiny_target(family, **(({"vocab_size": SIZE} if way == "texts" else {}) | more))


def drafter(folder: Path, way: str, family: str = "llama") -> str:
    """A draft model for that way of drafting."""
    tokenizer = tokenizers(way)[1]
    size = {"vocab_size": len(tokenizer.get_vocab())} if way == "texts" else {}
    model = saved(folder, tiny_target(family, seed=4, **size), tokenizer)
    return patch(model, pard_token=120)


class TestEveryWay(ProposerContract):
    @pytest.fixture(params=["in one pass", "shared tokens, drawn", "texts"])
    def way(self, request):
        return request.param

    @pytest.fixture
    def method(self):
        return METHOD

    @pytest.fixture
    def options(self, way, tmp_path) -> Mapping[str, Any]:
        return {**WAYS[way], "model": drafter(tmp_path / "d", way)}

    @pytest.fixture
    def target(self, way) -> FakeTarget:
        return FakeTarget(target(way), tokenizer=tokenizers(way)[0])


class Identity(IdentityContract):
    families: ClassVar = ("llama",)
    ks: ClassVar = (4,)
    max_tokens: ClassVar = 10
    way: ClassVar[str]

    @pytest.fixture
    def method(self):
        return METHOD

    @pytest.fixture
    def options(self, tmp_path):
        return {**WAYS[self.way], "model": drafter(tmp_path / "d", self.way)}

    def target(self, family, *args, **more):
        return target(self.way, family, **({"dtype": args[0]} if args else {}), **more)

    def run(self, *args, **llm):
        return super().run(*args, tokenizer=tokenizers(self.way)[0], **llm)


class TestGreedy(Identity):
    way = "greedy"
    families = ("gemma3",)


class TestInOnePass(Identity):
    way = "in one pass"


class TestTexts(Identity):
    way = "texts"


class TestDrawnWithTheTargetsNoise(Identity):
    """The only soft drafts that leave seeded samples as they are."""

    way = "drawn with the target's noise"
