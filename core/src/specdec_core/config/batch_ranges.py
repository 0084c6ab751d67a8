"""Reads a schedule of draft lengths by batch size, in vLLM's form and in the older one; knows no engine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

BatchRange = tuple[int, int, int]
EXPECTED: Final = 'expected a list of [start, end, K], or {"start-end": K}'
_SIZES: Final = re.compile(r"(\d+)(?:-(\d+))?")


def read_ranges(value: Any) -> tuple[BatchRange, ...]:
    """Return (start, end, K) sorted by start, of a list of these or of a mapping from "start-end" or "size" to K.

    Bounds are inclusive batch sizes. Raises ValueError that names which range is wrong and how: not whole numbers,
    start above end, an overlap, or a smallest start other than 1.
    """
    if not isinstance(value, Sequence | Mapping) or isinstance(value, str) or not value:
        raise ValueError(EXPECTED)
    entries = [_entry(sizes, k) for sizes, k in value.items()] if isinstance(value, Mapping) else value
    ranges = sorted(_range(entry) for entry in entries)
    if ranges[0][0] != 1:
        message = f"the smallest start must be 1, and it is {ranges[0][0]}"
        raise ValueError(message)
    for (start, end, _), (following, *_) in itertools.pairwise(ranges):
        if following <= end:
            message = f"the range {start}..{end} overlaps the one that starts at {following}"
            raise ValueError(message)
    return tuple(ranges)


def _entry(sizes: Any, k: Any) -> tuple[Any, Any, Any]:
    """Turn a mapping's key and value into a range; a whole number counts as its own text, as YAML reads it."""
    text = str(sizes) if type(sizes) is int else sizes
    match = _SIZES.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        message = f'expected batch sizes as "start-end" or "size"; one is {sizes!r}'
        raise ValueError(message)
    return int(match[1]), int(match[2] or match[1]), k


def _range(entry: Any) -> BatchRange:
    whole = isinstance(entry, Sequence) and len(entry) == 3 and all(type(number) is int for number in entry)
    if not whole or not 1 <= entry[0] <= entry[1] or entry[2] < 0:
        message = f"expected [start, end, K], whole numbers with 1 <= start <= end and K >= 0; one range is {entry!r}"
        raise ValueError(message)
    return entry[0], entry[1], entry[2]
