"""Text files that people have: UTF-8 with or without a byte order mark, lines that end at \\n; else one clear error."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

from specdec_core.errors import SpecdecError

UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(file: Path, name: str, error: type[SpecdecError]) -> str:
    """Return the text of a file without its byte order mark; raises `error`, naming the file by `name`."""
    return decode(_bytes(file, name, error), name, error)


def read_lines(file: Path, name: str, error: type[SpecdecError]) -> list[str]:
    """Return the lines of a file without their ends, which are \\n or \\r\\n and no other character."""
    return split_lines(read_text(file, name, error))


def split_lines(text: str) -> list[str]:
    """Split a text at \\n alone, and drop a \\r before it; what stands behind the last \\n is a line unless empty."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def decode(data: bytes, name: str, error: type[SpecdecError]) -> str:
    """Return the text in bytes of UTF-8, without a byte order mark; raises `error` with the line for others."""
    if data.startswith(UTF16):
        message = f"{name} is text in UTF-16, as Windows PowerShell's > writes it; save it as UTF-8"
        raise error(message)
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as problem:
        before = data.removeprefix(codecs.BOM_UTF8)[: problem.start]
        line, column = before.count(b"\n") + 1, problem.start - (before.rfind(b"\n") + 1) + 1
        message = (
            f"{name}, line {line}: byte 0x{problem.object[problem.start]:02x} at column {column} is not UTF-8; "
            "it looks like Latin-1 or Windows-1252: save the file as UTF-8"
        )
        raise error(message) from problem


def _bytes(file: Path, name: str, error: type[SpecdecError]) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        message = f"{name} cannot be read: {problem.strerror or problem}"
        raise error(message) from problem
