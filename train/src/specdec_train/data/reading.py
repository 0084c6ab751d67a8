"""Reading of collected data: requests with their ids, and states that are read from the shard when they are touched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdec_core.errors import RequestError
from specdec_train.data.manifest import Manifest, ShardEntry

ALL_TENSORS = ("ids", "offsets", "prompts", "tasks", "held_out", "last", "aux")


class Shard:
    """One file of data; its small tensors are held, its states are read by rows."""

    def __init__(self, file: Path, entry: ShardEntry) -> None:
        """Open the file. Raises RequestError for one that is not there, or that is not what the manifest has."""
        self.file = file
        try:
            opener: Any = safe_open  # it has no types
            self._tensors = opener(file, framework="pt")
            names = set(self._tensors.keys())
        except (OSError, SafetensorError) as error:
            message = f"{file} cannot be read, and the manifest names it: {error}"
            raise RequestError(message) from error
        if missing := sorted(set(ALL_TENSORS) - names):
            message = f"{file} has no tensors {missing}; it is not a shard of this format"
            raise RequestError(message)
        self.ids: Tensor = self._tensors.get_tensor("ids").long()
        self.offsets: list[int] = self._tensors.get_tensor("offsets").tolist()
        self.prompts: list[int] = self._tensors.get_tensor("prompts").tolist()
        self.tasks: list[int] = self._tensors.get_tensor("tasks").tolist()
        self.held_out: list[bool] = self._tensors.get_tensor("held_out").bool().tolist()
        if (len(self.prompts), len(self.ids)) != (entry.requests, entry.ids):
            message = (
                f"{file} has {len(self.prompts)} requests and {len(self.ids)} ids, and the manifest counts "
                f"{entry.requests} and {entry.ids}; collect the data again"
            )
            raise RequestError(message)

    def rows(self, name: str, start: int, end: int) -> Tensor:
        """Return rows `start` to `end` of `last` or `aux`, read from the file now."""
        rows: Tensor = self._tensors.get_slice(name)[start:end]
        return rows


@dataclass(frozen=True)
class Request:
    """A prompt with its answer, and the target's states at each of its ids.

    Row i of `last` and of `aux` is the state after reading ids[0 .. i].

    ids       [n] int64
    prompt    how many of them are the prompt
    task      which kind of request it is
    held_out  it is for measuring, and never trained on
    """

    ids: Tensor
    prompt: int
    task: str
    held_out: bool
    shard: Shard
    start: int

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.ids)

    @property
    def last(self) -> Tensor:
        """[n, H] the last state, after the final norm: what the target's head reads."""
        return self.shard.rows("last", self.start, self.start + len(self.ids))

    @property
    def aux(self) -> Tensor:
        """[n, A * H] the states of the aux layers, one after the other in a row."""
        return self.shard.rows("aux", self.start, self.start + len(self.ids))


class Data:
    """A folder of collected data, as it is when it is opened: shards that come later are not seen."""

    def __init__(self, folder: str | Path) -> None:
        """Read the manifest and open all shards. Raises RequestError for what is missing or is something else."""
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.shards = [Shard(self.folder / entry.file, entry) for entry in self.manifest.shards]
        self._requests: list[Request] = []
        for shard in self.shards:
            for i, task in enumerate(shard.tasks):
                start, end = shard.offsets[i], shard.offsets[i + 1]
                name = self.manifest.tasks[task]
                ids = shard.ids[start:end]
                self._requests.append(Request(ids, shard.prompts[i], name, shard.held_out[i], shard, start))

    def requests(self, held_out: bool = False) -> Sequence[Request]:
        """Return the requests to train on, or those that are held out, in the order in which they were collected."""
        return [request for request in self._requests if request.held_out == held_out]

    def verify(self) -> None:
        """Compare the hashes of all shards, which reads every byte. Raises RequestError for one that differs."""
        for entry in self.manifest.shards:
            if hash_of(self.folder / entry.file) != entry.sha256:
                message = f"{self.folder / entry.file} is not the file that was collected: its sha256 differs"
                raise RequestError(message)


def hash_of(file: Path) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
