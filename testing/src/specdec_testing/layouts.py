"""What the tests of a method with checkpoints of several layouts share: stored layouts, and the promises in each shape.

A layout is a checkpoint as one producer writes it; a shape is a layout with keys of the configuration and a number of
drafts. What the drafts then are is compared by `specdec_testing.watching`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch
import transformers
from torch import Tensor

from specdec_testing.contract import ProposerContract
from specdec_testing.fakes import FakeTarget
from specdec_testing.identity import IdentityContract

Parts = TypeVar("Parts")


def save(
    folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None, file: str = "model.safetensors"
) -> str:
    """Write a checkpoint, without config.json if `settings` is None, and return its folder.

    `file` ends in `.safetensors`, or is one that `torch.save` writes.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(dict(settings)))
    if file.endswith(".safetensors"):
        save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(dict(tensors), folder / file)
    return str(folder)


@dataclass(frozen=True)
class Layout(Generic[Parts]):
    """A checkpoint as one producer writes it.

    parts     its weights in a form of the tests' own, for an independent account of the drafts
    tensors   by the names that they are stored under
    settings  config.json, None where there is none
    """

    parts: Parts
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] | None
    file: str = "model.safetensors"

    def save(self, folder: Path) -> str:
        """Write it, and return its folder."""
        return save(folder, self.tensors, self.settings, self.file)


@dataclass(frozen=True)
class Shape:
    """A layout with further keys of the speculative configuration, and the number of drafts."""

    layout: Layout[Any]
    k: int
    keys: Mapping[str, Any] = field(default_factory=dict)

    def options(self, folder: Path) -> dict[str, Any]:
        """Write the layout, and return the keys of the method."""
        return {**self.keys, "model": self.layout.save(folder)}


class LayoutContract(ProposerContract, promises=True):
    """The promises of a proposer in each of several shapes of draft.

    A subclass gives the fixture `method`, and:
    shapes  by name
    model   the tiny target that the layouts are for
    """

    shapes: ClassVar[Mapping[str, Shape]]
    model: ClassVar[transformers.PreTrainedModel]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every check with every shape."""
        if "shape" in metafunc.fixturenames:
            metafunc.parametrize("shape", list(self.shapes.values()), ids=list(self.shapes), scope="function")

    @pytest.fixture
    def k(self, shape: Shape) -> int:
        """Return the number of drafts asked for."""
        return shape.k

    @pytest.fixture
    def options(self, shape: Shape, tmp_path: Path) -> Mapping[str, Any]:
        """Return the method's keys in the speculative configuration."""
        return shape.options(tmp_path / "checkpoint")

    @pytest.fixture
    def target(self) -> FakeTarget:
        """Return the target handle."""
        return FakeTarget(self.model)


class LayoutIdentity(IdentityContract, promises=True):
    """Lossless text in one shape of draft. A subclass gives the fixture `method`, and `shape`."""

    families: ClassVar = ("llama",)
    max_tokens: ClassVar = 10
    shape: ClassVar[Shape]

    @pytest.fixture
    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        """Return the method's keys in the speculative configuration."""
        return self.shape.options(tmp_path / "checkpoint")
