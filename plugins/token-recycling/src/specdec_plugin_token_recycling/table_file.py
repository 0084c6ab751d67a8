"""The file that candidates are kept in, a `specdec_core.cache_file.CacheFile`.

The description is {"candidates": n, "namespaces": [names], "rows": [rows of each]}, the data for each namespace, in
order, little-endian numbers of 4 bytes:

    the keys of its rows, ascending: the id before, -1 for any, and the id
    their candidates, n a row, the likeliest first, -1 where there is none
    the log-probabilities of these, float32, minus infinity where there is none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec_core.cache_file import CacheFile

if TYPE_CHECKING:
    from specdec_plugin_token_recycling.table import Contents

FILE: Final = CacheFile(b"SPDSRCYC", 1, "token recycling file")


@dataclass(frozen=True)
class Kept:
    """What is in a file: the rows of each namespace, as `Table.contents` returns them, and the file's own SHA-256."""

    candidates: int
    tables: dict[str, Contents]
    digest: bytes

    @property
    def vocabulary(self) -> int:
        """One more than the largest id."""
        parts = [part for keys, top, _ in self.tables.values() for part in (keys, top) if part.size]
        return 1 + max((int(part.max()) for part in parts), default=-1)


def write(path: str | PathLike[str], candidates: int, tables: Mapping[str, Contents]) -> None:
    """Write the rows of namespaces to a file, which is replaced when the new one is whole.

    Raises SpecdecError if it cannot be written; what was there stays.
    """
    rows = [len(keys) for keys, _, _ in tables.values()]
    description = {"candidates": candidates, "namespaces": list(tables), "rows": rows}
    data = []
    for keys, top, logprobs in tables.values():
        data += [keys.astype("<i4").tobytes(), top.astype("<i4").tobytes(), logprobs.astype("<f4").tobytes()]
    FILE.write(path, description, data)


def read(path: str | PathLike[str]) -> Kept:
    """Read a file; raises SpecdecError with the reason for one that is cut off, changed, foreign or too new."""
    return FILE.read(path, _kept)


def _kept(description: dict[str, Any], data: bytes, digest: bytes) -> Kept:
    """Take the rows apart; raises ValueError, KeyError, TypeError or IndexError if they do not fit."""
    n, names, counts = int(description["candidates"]), description["namespaces"], description["rows"]
    if n < 1 or len(names) != len(counts) or not all(isinstance(name, str) for name in names):
        message = "the description is not one"
        raise ValueError(message)
    if 8 * sum(counts) * (1 + n) != len(data):
        message = f"{len(data)} bytes for {sum(counts)} rows"
        raise ValueError(message)
    tables, at = {}, 0
    for name, count in zip(names, counts, strict=True):
        keys, top, logprobs = (
            np.frombuffer(data, kind, count * width, at + 4 * count * before)
            for kind, width, before in (("<i4", 2, 0), ("<i4", n, 2), ("<f4", n, 2 + n))
        )
        at += 8 * count * (1 + n)
        tables[name] = (
            keys.reshape(-1, 2).astype(np.int32),
            top.reshape(-1, n).astype(np.int32),
            logprobs.reshape(-1, n).copy(),
        )
        _check(*tables[name])
    return Kept(n, tables, digest)


def _check(keys: Any, top: Any, logprobs: Any) -> None:
    """Raise ValueError for rows that no table can have."""
    there = top >= 0
    ordered = np.sort(np.where(there, top, -1 - np.arange(top.shape[1])), axis=1)
    wrong = {
        "keys that do not ascend": (keys < [-1, 0]).any() or (np.diff(keys.astype(np.int64) @ [2**32, 1]) < 1).any(),
        "a candidate after none": (np.diff(there.astype(np.int8), axis=1) > 0).any() or not there[:, 0].all(),
        "a candidate that is repeated": (np.diff(ordered, axis=1) == 0).any(),
        "a log-probability that is not one": (~(logprobs[there] <= 0)).any() or (logprobs[~there] != -np.inf).any(),
        "candidates that are not in order": (np.diff(np.where(there, logprobs, -np.inf), axis=1) > 0).any(),
    }
    for what, found in wrong.items():
        if found:
            raise ValueError(what)
