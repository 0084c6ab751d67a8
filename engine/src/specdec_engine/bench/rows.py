"""The rows of a benchmark and the file that keeps them: written whole after each unit, read again to go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from specdec_core.errors import RequestError

FORMAT: Final = 2
SPARE: Final = 20  # times as long as a write took, before the next one: a twentieth of the time at most
TIMES: Final = ("seconds", "prompt_seconds", "phases", "forwards", "part_seconds")  # what no second run repeats


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where an arm's output first differs from plain decoding's.

    index         place in the output
    plain, other  the ids there, None where an output has ended
    verdict       "rounding" or "fault" as `LLM.compare` finds it, "not promised" where tokens need not be the same
    margin, noise what the verdict rests on, None where it was not looked for
    """

    index: int
    plain: int | None
    other: int | None
    verdict: str
    margin: float | None = None
    noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one arm did on one unit.

    prompts           places of the prompts; `ids`, `producers` and `differences` are in their order
    seconds           from submission to the last token, the pass over the prompts included
    prompt_seconds    of that, in steps in which pieces of prompts ran
    phases            of that, in the other steps, by phase (`recorder.PHASES`)
    forwards          [rows, forwards, their seconds], of these other steps
    accepted_lengths  [accepted drafts, rows of forwards]; `undrafted` had no draft
    part_seconds      seconds of drafting of each part of a method that is made of others, steps with prompts included
    counters          `SpecMetrics`, all prompts together
    differences       None where the output is plain decoding's
    """

    arm: str
    concurrency: int
    unit: int
    task: str
    prompts: list[int]
    ids: list[list[int]]
    producers: list[str]
    differences: list[Difference | None]
    seconds: float
    prompt_seconds: float
    phases: dict[str, float]
    forwards: list[tuple[int, int, float]]
    accepted_lengths: list[tuple[int, int]]
    undrafted: int
    part_seconds: list[float]
    counters: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Ids emitted for all prompts."""
        return sum(map(len, self.ids))

    @property
    def first_tokens(self) -> int:
        """Ids that came with the pass over a prompt."""
        return sum(bool(ids) for ids in self.ids)

    def without_times(self) -> dict[str, Any]:
        """Return what a second run repeats, as plain data, where no draft is cut by the time of its row."""
        return {name: value for name, value in asdict(self).items() if name not in TIMES}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """Read what `asdict` gives after JSON. Raises KeyError or TypeError for other data."""
        given = {field.name: data[field.name] for field in fields(cls)}
        given["differences"] = [None if each is None else Difference(**each) for each in given["differences"]]
        for name in ("forwards", "accepted_lengths"):
            given[name] = [tuple(each) for each in given[name]]
        return cls(**given)


class Saver:
    """Keeps the file up to date while rows come, without spending the run on writing it."""

    def __init__(self, file: Path | None, settings: Mapping[str, Any], **more: Any) -> None:
        """Take what stands in the file beside the rows; without a file nothing is kept."""
        self._file, self._settings, self._more = file, settings, more
        self._due = 0.0

    def save(self, rows: Sequence[Row], *, now: bool = False, **more: Any) -> None:
        """Write the file, at once or if it is time. Raises RequestError."""
        began = perf_counter()
        if self._file is None or not (now or began >= self._due):
            return
        write(self._file, self._settings, rows, **self._more, **more)
        self._due = (SPARE + 1) * perf_counter() - SPARE * began


def write(file: Path, settings: Mapping[str, Any], rows: Sequence[Row], **more: Any) -> None:
    """Write the file at once: who reads it sees the old one or the new one, whole. Raises RequestError."""
    data = {"format": FORMAT, "settings": settings, **more, "rows": [asdict(row) for row in rows]}
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        beside.write_text(json.dumps(data, separators=(",", ":")), encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        message = f"--json {file} cannot be written: {error.strerror or error}"
        raise RequestError(message) from error


def read(file: Path, settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows of an earlier run with the same settings; none where there is no file.

    Raises RequestError for a file that is no such run's, naming the first setting that differs.
    """
    if not file.exists():
        return []
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        known, rows = data["settings"], [Row.from_json(row) for row in data["rows"]]
        version = data["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"--resume: {file} is no file of `specdec bench --json`: {type(error).__name__}: {error}"
        raise RequestError(message) from error
    if version != FORMAT:
        message = f"--resume: {file} has format {version}, this version reads {FORMAT}; measure again"
        raise RequestError(message)
    mine = json.loads(json.dumps(settings))
    for name in {**mine, **known}:
        if mine.get(name) != known.get(name):
            message = (
                f"--resume: {file} was measured with {name} {known.get(name)!r}, now it is {mine.get(name)!r}; "
                "give the same options, or another --json file"
            )
            raise RequestError(message)
    return rows
