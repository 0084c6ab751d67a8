"""Writing of collected data: whole shards only, each in one step, so that a killed process leaves what can be read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_core.errors import RequestError
from specdec_train.data.manifest import NAME, Manifest, ShardEntry
from specdec_train.data.reading import hash_of
from specdec_train.replacing import NEW, replace_file

HELD_OUT_ONE_IN: Final = 16


@dataclass(frozen=True)
class Collected:
    """A request as it was decoded.

    ids     every id that the target has read, prompt first
    prompt  how many of them are the prompt
    task    index of its kind in the manifest
    last    [n, H] the last state at each id, after the final norm
    aux     [n, A * H] the states of the aux layers
    """

    ids: Sequence[int]
    prompt: int
    task: int
    last: Tensor
    aux: Tensor


class Writer:
    """Appends shards to a folder, new or begun before."""

    def __init__(self, folder: str | Path, manifest: Manifest) -> None:
        """Make the folder, or go on in one with the same settings; the shards of `manifest` are ignored.

        A folder in which nothing was collected yet takes the new settings.

        Raises RequestError where the folder holds data that were collected otherwise, or something else.
        """
        self.folder = Path(folder)
        found = Manifest.read(self.folder) if (self.folder / NAME).exists() else None
        if found is not None and found.shards:
            _check_same(self.folder, found, manifest)
            self.manifest = found
            return
        if found is None:
            _check_free(self.folder)
        self.manifest = replace(manifest, shards=())
        self.folder.mkdir(parents=True, exist_ok=True)
        self.manifest.write(self.folder)

    @property
    def number(self) -> int:
        """The number of the next shard."""
        return len(self.manifest.shards)

    def write(self, requests: Sequence[Collected]) -> ShardEntry:
        """Write the next shard, then the manifest that names it. Raises RequestError for states that do not fit."""
        name = f"shard-{self.number:05d}.safetensors"
        tensors = self._tensors(requests)
        replace_file(self.folder / name, lambda new: save_file(tensors, new))
        entry = ShardEntry(name, len(requests), len(tensors["ids"]), hash_of(self.folder / name))
        self.manifest = self.manifest.with_shard(entry)
        self.manifest.write(self.folder)
        return entry

    def _tensors(self, requests: Sequence[Collected]) -> dict[str, Tensor]:
        dtype: torch.dtype = getattr(torch, self.manifest.dtype)
        width, layers = self.manifest.hidden_size, len(self.manifest.aux_layers)
        for request in requests:
            expected = (len(request.ids), width), (len(request.ids), layers * width)
            found = tuple(request.last.shape), tuple(request.aux.shape)
            if found != expected:
                message = f"a request has states of the shapes {found}, expected {expected}"
                raise RequestError(message)
        lengths = [len(request.ids) for request in requests]
        ids = [token for request in requests for token in request.ids]
        held_out = [is_held_out(request.ids[: request.prompt]) for request in requests]
        return {
            "ids": torch.tensor(ids, dtype=torch.int32),
            "offsets": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64),
            "prompts": torch.tensor([request.prompt for request in requests], dtype=torch.int32),
            "tasks": torch.tensor([request.task for request in requests], dtype=torch.uint8),
            "held_out": torch.tensor(held_out, dtype=torch.uint8),
            "last": _joined([request.last.to(dtype) for request in requests], width, dtype),
            "aux": _joined([request.aux.to(dtype) for request in requests], layers * width, dtype),
        }


def is_held_out(prompt: Sequence[int]) -> bool:
    """Return whether a request with this prompt is held out: one in 16, by a hash of the prompt's ids alone."""
    digest = hashlib.sha256(np.asarray(prompt, "<i4").tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % HELD_OUT_ONE_IN == 0


def _joined(parts: list[Tensor], width: int, dtype: torch.dtype) -> Tensor:
    return torch.cat(parts).contiguous() if parts else torch.zeros(0, width, dtype=dtype)


def _check_same(folder: Path, found: Manifest, wanted: Manifest) -> None:
    before: dict[str, Any] = {**found.as_json(), "shards": []}
    now: dict[str, Any] = {**wanted.as_json(), "shards": []}
    if different := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
        pairs = ", ".join(f"{key} {_short(before.get(key))} and not {_short(now.get(key))}" for key in different)
        message = (
            f"{folder} holds data that were collected with {pairs}; give the same settings to go on, or another --out"
        )
        raise RequestError(message)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        message = f"{folder} is a file; --out names a folder"
        raise RequestError(message)
    if folder.is_dir() and any(file.suffix != NEW for file in folder.iterdir()):
        message = f"{folder} has files in it and no {NAME}; --out names a new folder, or one that was begun before"
        raise RequestError(message)
