"""Waits for another process with a limit that counts time in which both could run, not time on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

SLICE: Final = 0.1  # seconds of one wait


def wait(get: Callable[[float], T], limit: float | None, nothing: type[Exception], pid: int) -> T:
    """Return what `get` returns, which waits for the seconds that it is given and raises `nothing` after them.

    Raises `nothing` after `limit` seconds, never if that is None. On a machine that stands still or is too busy the
    other process has no time to answer: a slice counts as twice its length at most, and what the process `pid` waited
    for a core does not count, where the system tells.
    """
    waited, before = 0.0, queued(pid)
    while True:
        begun = time.monotonic()
        try:
            return get(SLICE)
        except nothing:
            waited += min(time.monotonic() - begun, 2 * SLICE)
            if limit is not None and waited - (queued(pid) - before) >= limit:
                raise


def queued(pid: int) -> float:
    """Return for how many seconds the first thread of a process has been ready and waited for a core; 0 where unknown.

    As of when it last got one: Linux, second number of /proc/PID/schedstat.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
