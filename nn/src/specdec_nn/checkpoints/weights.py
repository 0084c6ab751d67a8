"""Reads the tensors of a draft checkpoint; it knows files and names, not what the tensors are for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from specdec_core.config import checkpoint
from specdec_core.config.tensor_files import check_is_no_pointer
from specdec_core.errors import ConfigError
from specdec_core.sources import DraftSource


def read_tensors(source: DraftSource, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU and in their own dtypes.

    `wanted` picks names; others are not read (safetensors) or dropped (`.bin`, `.pt`, read with `weights_only`), and
    files in which the checkpoint's index sees none of them are not opened. Raises ConfigError naming the file that
    cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    for file in _files(source, wanted):
        check_is_no_pointer(file)
        try:
            tensors.update(_safetensors(file, wanted) if file.suffix == ".safetensors" else _torch(file, wanted))
        except Exception as error:  # both readers raise whatever their formats make them
            cause = str(error).partition("\n")[0]
            message = f"the tensors of {file} cannot be read ({type(error).__name__}: {cause})"
            raise ConfigError(message) from error
    return tensors


def _files(source: DraftSource, wanted: Callable[[str], bool]) -> list[Path]:
    """Return the files with tensors of these names, by the index; without one, all."""
    index = next((file for name in checkpoint.INDEXES if (file := source.path / name).is_file()), None)
    places = None if index is None else checkpoint.read_json_object(index).get("weight_map")
    if not isinstance(places, dict):
        return list(source.weight_files)
    needed = {place for name, place in places.items() if wanted(name)}
    return [file for file in source.weight_files if file.name in needed or file.name not in places.values()]


def _safetensors(file: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        return {name: content.get_tensor(name) for name in content.keys() if wanted(name)}


def _torch(file: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    state = torch.load(file, weights_only=True, map_location="cpu")
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and wanted(name)}
