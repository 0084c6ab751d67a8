"""Waits for another process with a limit that counts time in which this process ran, not time on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

SLICE: Final = 0.1  # seconds of one wait


def wait(get: Callable[[float], T], limit: float | None, nothing: type[Exception]) -> T:
    """Return what `get` returns, which waits for the seconds that it is given and raises `nothing` after them.

    Raises `nothing` after `limit` seconds, never if that is None. A slice of time counts as twice its length at most:
    while a machine stands still, or both processes are stopped, the other one has no time to answer either.
    """
    waited = 0.0
    while True:
        begun = time.monotonic()
        try:
            return get(SLICE)
        except nothing:
            waited += min(time.monotonic() - begun, 2 * SLICE)
            if limit is not None and waited >= limit:
                raise
