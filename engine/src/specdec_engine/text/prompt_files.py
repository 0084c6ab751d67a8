"""Prompts from files and from standard input, for the command line; each error names file, line and prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_core.config.text_files import decode, read_lines
from specdec_core.errors import RequestError
from specdec_engine.text.prompt_text import check_text


@dataclass(frozen=True)
class FilePrompt:
    """A prompt of a file: its text, where it is, and the other keys of its JSON object, none for a line of text."""

    text: str
    where: str
    keys: Mapping[str, Any] = field(default_factory=dict)


def read_prompts(prompt: Sequence[str] | None, file: Path | None) -> list[str]:
    """Return the prompts of `--prompt`, of `--prompts`, or of standard input. Raises RequestError."""
    if prompt and file:
        message = "--prompt and --prompts exclude each other"
        raise RequestError(message)
    if prompt:
        for number, text in enumerate(prompt):
            check_text(text, f"--prompt, prompt {number}" if len(prompt) > 1 else "--prompt")
        return list(prompt)
    return [_standard_input()] if file is None else [found.text for found in read_file(file)]


def read_file(file: Path) -> list[FilePrompt]:
    """Return the prompts of a file: one a line, or in a .jsonl an object a line with 'prompt' or with 'turns'.

    Raises RequestError for a file that is not there or has no prompts, and for a line that is none.
    """
    if not file.is_file():
        message = f"--prompts {file}: there is no such file"
        raise RequestError(message)
    lines = read_lines(file, f"--prompts {file}", RequestError)
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        message = f"--prompts {file}: the file has no prompts in it"
        raise RequestError(message)
    return list(_prompts(file, numbered))


def _prompts(file: Path, numbered: Sequence[tuple[int, str]]) -> Iterator[FilePrompt]:
    for index, (number, line) in enumerate(numbered):
        where = f"--prompts {file}, line {number} (prompt {index})"
        found = _from_json(line, where) if file.suffix == ".jsonl" else FilePrompt(line, where)
        check_text(found.text, where)
        yield found


def _from_json(line: str, where: str) -> FilePrompt:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        message = f"{where} is not valid JSON: {error}"
        raise RequestError(message) from error
    try:
        text = data["prompt"] if "prompt" in data else data["turns"][0]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        message = f"{where}: expected a JSON object with 'prompt', or with 'turns'"
        raise RequestError(message)
    return FilePrompt(text, where, {key: value for key, value in data.items() if key not in ("prompt", "turns")})


def _standard_input() -> str:
    buffer = getattr(sys.stdin, "buffer", None)
    text = sys.stdin.read() if buffer is None else decode(buffer.read(), "standard input", RequestError)
    text = text.replace("\r\n", "\n").rstrip("\n")
    if not text.strip():
        message = "no prompt: give --prompt TEXT, --prompts FILE, or text on standard input"
        raise RequestError(message)
    check_text(text, "standard input")
    return text
