"""Standard output and error of a command: characters that their encoding lacks are written as escapes, never lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from io import TextIOWrapper

ESCAPES = "backslashreplace"


@contextlib.contextmanager
def tolerant_output() -> Iterator[None]:
    """Write what cp1252, ascii or another encoding lacks as \\xe9, \\u20ac or \\U0001f600 while a command runs."""
    changed: list[tuple[TextIOWrapper, str]] = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors != ESCAPES:
            changed.append((stream, stream.errors or "strict"))
            stream.reconfigure(errors=ESCAPES)
    try:
        yield
    finally:
        for stream, errors in changed:
            if not stream.closed:
                with contextlib.suppress(OSError):  # a pipe that nobody reads any more
                    stream.reconfigure(errors=errors)
