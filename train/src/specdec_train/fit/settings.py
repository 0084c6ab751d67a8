"""All that a run depends on, written once into its folder, so that it resumes as what it was; it trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from specdec_core.errors import RequestError
from specdec_train.fit.files import write_json

NAME: Final = "run.json"
FORMAT: Final = 2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run.

    method, options  which head, and what was chosen of it
    target           the model, as it was named
    data, shards     the folder of data, and the sha256 of each shard that is read, in order
    ids              how many ids are trained on in all; passes over the data follow each other
    lanes, width     the shape of a batch
    optimizer        "muon" or "adamw"
    lr               largest learning rate; it rises over the first `warmup` of the ids, and falls to `floor` of itself
    weight_decay     of matrices
    clip             largest norm of a gradient
    seed             of first weights and of the order
    evaluate_every   ids between two measurements of agreement
    held_out_ids     about how many ids that is measured on
    compute          dtype of the products: "float32" or "bfloat16"
    minutes          what `ids` was made of, None without it
    """

    method: str
    options: Mapping[str, Any]
    target: str
    data: str
    shards: tuple[str, ...]
    ids: int
    lanes: int
    width: int
    optimizer: str = "adamw"
    lr: float
    warmup: float = 0.05
    floor: float = 0.02
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    evaluate_every: int = 20_000
    held_out_ids: int = 8192
    compute: str = "float32"
    minutes: float | None = None

    def write(self, folder: Path) -> None:
        """Write the file."""
        write_json(folder / NAME, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Settings | None:
        """Return the settings of a run that was begun in a folder, None without one. Raises RequestError."""
        file = folder / NAME
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            if found.pop("format") != FORMAT:
                message = f"{file} is not of format {FORMAT}, which this release reads; begin another run"
                raise RequestError(message)
            return cls(**{**found, "shards": tuple(found["shards"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, RequestError):
                raise
            message = f"{file} cannot be read ({type(error).__name__}: {error}); begin another run"
            raise RequestError(message) from error

    def check_same(self, wanted: Settings, folder: Path) -> None:
        """Raise RequestError where a run was begun with other settings than it would now be begun with.

        Ids that were made of minutes, and shards that came later, are those of the beginning; data may have moved.
        """
        free = {"shards", "data"} | ({"ids"} if self.minutes is not None else set())
        names = [field.name for field in fields(self) if field.name not in free]
        different = [name for name in names if _plain(getattr(self, name)) != _plain(getattr(wanted, name))]
        if different:
            pairs = ", ".join(f"{n} {getattr(self, n)!r} and not {getattr(wanted, n)!r}" for n in different)
            message = f"the run in {folder} was begun with {pairs}; give the same to resume it, or another --out"
            raise RequestError(message)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
