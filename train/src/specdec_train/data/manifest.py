"""The manifest of a folder of collected data: which target, which states, which shards; knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from specdec_core.errors import RequestError
from specdec_train.replacing import replace_file

FORMAT: Final = 1
NAME: Final = "manifest.json"


@dataclass(frozen=True)
class ShardEntry:
    """One shard: its file in the folder, how many requests and ids it has, and the hash of the file."""

    file: str
    requests: int
    ids: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` has.

    target          what the target was named when data were collected
    target_config   its config.json
    hidden_size     H, the width of its states
    aux_layers      R_k indices of the kept states (the residual stream after k decoder layers), ascending; may be empty
    dtype           of the kept states
    seed            what all random choices were made from
    tasks           names of the kinds of requests; shards refer to them by index
    shards          those that are whole, in order
    settings        what else the data depend on, by name
    """

    target: str
    target_config: Mapping[str, Any]
    hidden_size: int
    aux_layers: tuple[int, ...]
    dtype: str
    seed: int
    tasks: tuple[str, ...]
    shards: tuple[ShardEntry, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> int:
        """Ids of all shards."""
        return sum(shard.ids for shard in self.shards)

    @property
    def requests(self) -> int:
        """Requests of all shards."""
        return sum(shard.requests for shard in self.shards)

    def with_shard(self, shard: ShardEntry) -> Manifest:
        """Return this manifest with one more shard."""
        return replace(self, shards=(*self.shards, shard))

    def as_json(self) -> dict[str, Any]:
        """Return the object that the file holds; settings are keys beside the others."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "settings"}
        own["shards"] = [vars(shard) for shard in self.shards]
        made: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **own, **self.settings}, default=str))
        return made

    def write(self, folder: Path) -> None:
        """Write the file; a reader finds the old one or the new one, whenever this process is killed."""
        text = json.dumps(self.as_json(), indent=1) + "\n"
        replace_file(folder / NAME, lambda new: new.write_text(text, encoding="utf-8"))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the file of a folder. Raises RequestError where there is none, or where it is not of this format."""
        file = folder / NAME
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            message = f"{folder}: there is no {NAME} in it; `specdec train collect MODEL --out {folder}` makes one"
            raise RequestError(message) from None
        except (OSError, ValueError) as error:
            message = f"{file} cannot be read: {error}"
            raise RequestError(message) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            given = found.get("format") if isinstance(found, dict) else found
            message = f"{file}: format {given!r}, and this release reads format {FORMAT}; collect the data again"
            raise RequestError(message)
        return cls._of(file, found)

    @classmethod
    def _of(cls, file: Path, found: dict[str, Any]) -> Manifest:
        names = {each.name for each in fields(cls)} - {"settings"}
        own = {name: value for name, value in found.items() if name in names}
        rest = {name: value for name, value in found.items() if name not in names and name != "format"}
        try:
            own["shards"] = tuple(ShardEntry(**shard) for shard in own["shards"])
            own["aux_layers"], own["tasks"] = tuple(own["aux_layers"]), tuple(own["tasks"])
            return cls(**own, settings=rest)
        except (KeyError, TypeError) as error:
            message = f"{file} is not a whole manifest: {error}"
            raise RequestError(message) from error
