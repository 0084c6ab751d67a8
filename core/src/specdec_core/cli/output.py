"""Keeps what plugins print away from output that programs read; knows no command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, TextIO

_STREAM: Final[ContextVar[TextIO | None]] = ContextVar("specdec_output", default=None)


def emit(text: str) -> None:
    """Write a line of a command's own output, past whatever keeps the output of others away."""
    print(text, file=_STREAM.get() or sys.stdout, flush=True)


@contextlib.contextmanager
def others_to_stderr() -> Iterator[None]:
    """Within, only `emit` reaches standard output; prints, and writes to file descriptor 1, go to standard error."""
    own = sys.stdout
    own.flush()
    descriptors = _descriptors(own, sys.stderr)
    saved = -1
    stream = own
    if descriptors is not None:
        saved = os.dup(descriptors[0])
        stream = open(saved, "w", encoding=own.encoding, errors=own.errors, closefd=False)
        os.dup2(descriptors[1], descriptors[0])
    token = _STREAM.set(stream)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = own
        _STREAM.reset(token)
        if descriptors is not None:
            own.flush()
            os.dup2(saved, descriptors[0])
            os.close(saved)


def _descriptors(out: TextIO, err: TextIO) -> tuple[int, int] | None:
    """Return the descriptors of both streams, None where they have none, as in a notebook."""
    try:
        return out.fileno(), err.fileno()
    except (OSError, ValueError, AttributeError):
        return None
