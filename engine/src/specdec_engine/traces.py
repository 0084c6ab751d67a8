"""Token traces: prompts and outputs as ids, an object a line, for `specdec replay`; knows no model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.config.text_files import read_text, split_lines
from specdec_core.errors import RequestError

NEEDED: Final = ("prompt_token_ids", "token_ids")
LARGEST: Final = 2**31 - 1
Top = tuple[tuple[int, float], ...]  # the likeliest ids of one place, each with its log-probability


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a model answered to a prompt, in ids.

    task        what kind of prompt it is, "" where nobody said
    max_tokens  the most ids that the answer could have had, None where unknown: drafts may reach as far
    vocab_size  rows of the model's embedding, None where unknown
    model       its name, None where unknown
    top         for each id of the answer, the ids that were most likely in its place and their log-probabilities,
                before temperature, penalties and truncation, the likeliest first; () where nobody kept them
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    task: str = ""
    max_tokens: int | None = None
    vocab_size: int | None = None
    model: str | None = None
    top: tuple[Top, ...] = ()

    @property
    def top_n(self) -> int:
        """How many ids are kept for each place; 0: none."""
        return max((len(row) for row in self.top), default=0)


def write_traces(file: Path, traces: Iterable[Trace], option: str = "--record") -> None:
    """Write one line a trace, replacing the file; answers without ids are left out. Raises RequestError."""
    kept = [
        {key: value for key, value in asdict(trace).items() if value not in (None, "", ())}
        for trace in traces
        if trace.token_ids
    ]
    text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in kept)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"{option} {file} cannot be written: {error.strerror or error}"
        raise RequestError(message) from error


def read_traces(file: Path) -> list[Trace]:
    """Return the traces of a file; keys that no trace has are left alone. Raises RequestError, naming the line."""
    if not file.is_file():
        message = (
            f"{file}: there is no such file; `specdec generate --record FILE` writes one, and `specdec bench` as well"
        )
        raise RequestError(message)
    lines = split_lines(read_text(file, str(file), RequestError))
    found = [_trace(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        message = f"{file}: the file has no traces in it"
        raise RequestError(message)
    return found


def _trace(line: str, where: str) -> Trace:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        message = f"{where} is not valid JSON: {error}"
        raise RequestError(message) from error
    if not isinstance(data, dict) or not all(_are_ids(data.get(name)) for name in NEEDED):
        names = " and ".join(map(repr, NEEDED))
        message = f"{where}: expected an object with {names}, each a list of ids that is not empty"
        raise RequestError(message)
    numbers = {name: data.get(name) for name in ("max_tokens", "vocab_size")}
    for name, value in numbers.items():
        if value is not None and not (type(value) is int and 0 < value <= LARGEST):
            message = f"{where}: {name} must be a whole number above 0, got {value!r}"
            raise RequestError(message)
    texts = {name: data.get(name) or default for name, default in (("task", ""), ("model", None))}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            message = f"{where}: {name} must be a text, got {text!r}"
            raise RequestError(message)
    largest = max(max(data[name]) for name in NEEDED)
    if numbers["vocab_size"] is not None and largest >= numbers["vocab_size"]:
        message = f"{where}: id {largest} is outside its vocab_size {numbers['vocab_size']}"
        raise RequestError(message)
    known: dict[str, Any] = {**{name: tuple(data[name]) for name in NEEDED}, **numbers, **texts}
    return Trace(**known, top=_top(data.get("top"), data, where))


def _top(value: Any, data: dict[str, Any], where: str) -> tuple[Top, ...]:
    if value is None:
        return ()
    most = data.get("vocab_size") or LARGEST
    if isinstance(value, list) and len(value) == len(data["token_ids"]) and all(_is_top(row, most) for row in value):
        return tuple(tuple((id_, float(logprob)) for id_, logprob in row) for row in value)
    message = (
        f"{where}: top must be a list with an entry for each of the {len(data['token_ids'])} token_ids: pairs of an id "
        "of the vocabulary and its log-probability, the likeliest first"
    )
    raise RequestError(message)


def _is_top(row: Any, most: int) -> bool:
    if not isinstance(row, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in row):
        return False
    ids, logprobs = [pair[0] for pair in row], [pair[1] for pair in row]
    if not all(type(id_) is int and 0 <= id_ < most for id_ in ids) or len(set(ids)) < len(ids):
        return False
    return all(type(each) in (int, float) and math.isfinite(each) for each in logprobs) and logprobs == sorted(
        logprobs, reverse=True
    )


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(id_) is int and 0 <= id_ < LARGEST for id_ in value)
