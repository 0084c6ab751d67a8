"""A folder of `specdec train fit`, as far as measuring needs it: settings, log and exported head; trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.errors import RequestError

SETTINGS: Final = "run.json"
LOG: Final = "log.jsonl"
EXPORT: Final = "export"


@dataclass(frozen=True)
class Point:
    """A line of the log.

    ids        ids that were trained on so far
    loss       mean loss since the line before, None where it was not measured
    agreement  share of held-out places at which the head's likeliest id is the target's, by depth; empty between
               measurements
    """

    ids: int
    loss: float | None
    agreement: tuple[float, ...]


@dataclass(frozen=True)
class TrainedRun:
    """A run: its folder, what it was started with, and its log."""

    folder: Path
    settings: Mapping[str, Any]
    log: tuple[Point, ...]

    @property
    def export(self) -> Path:
        """The folder of the head as engines read it. Raises RequestError before the first one was written."""
        folder = self.folder / EXPORT
        if not (folder / "config.json").is_file():
            message = f"{self.folder}: no head was exported yet; `specdec train fit` does it at each measurement"
            raise RequestError(message)
        return folder

    @property
    def measured(self) -> Point | None:
        """The last measurement on held-out data, None before the first."""
        return next((point for point in reversed(self.log) if point.agreement), None)

    @property
    def data(self) -> Path | None:
        """The folder of its data, None if the settings name none."""
        named = self.settings.get("data")
        return Path(named) if isinstance(named, str) else None


def is_run(folder: Path) -> bool:
    """Return whether a folder is one of `specdec train fit`."""
    return (folder / SETTINGS).is_file() and (folder / LOG).is_file()


def open_run(folder: Path) -> TrainedRun:
    """Read a run's folder. Raises RequestError for what is none, naming file and line of what cannot be read."""
    if not is_run(folder):
        message = f"{folder}: expected a folder of `specdec train fit`, with {SETTINGS} and {LOG}"
        raise RequestError(message)
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{folder / SETTINGS} cannot be read: {error}"
        raise RequestError(message) from error
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
    points = (_point(line, f"{folder / LOG}, line {number}") for number, line in enumerate(lines, 1) if line.strip())
    return TrainedRun(folder, settings, tuple(points))


def _point(line: str, where: str) -> Point:
    try:
        data = json.loads(line)
        loss, agreement = data.get("loss"), data.get("agreement") or ()
        return Point(int(data["ids"]), None if loss is None else float(loss), tuple(float(each) for each in agreement))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{where} is no line of a log: {type(error).__name__}: {error}"
        raise RequestError(message) from error
