"""The file that candidates are kept in: written at once or not at all, read as a whole or not at all.

All numbers are little-endian.

    8 bytes   "SPDSRCYC"
    4         version of the format, 1
    4         length of the description
    ...       the description, UTF-8 JSON: {"candidates": n, "namespaces": [names], "rows": [rows of each]}
    4 each    for each namespace, in order: the keys of its rows, ascending: the id before, -1 for any, and the id
    4 each    their candidates, n a row, the likeliest first, -1 where there is none
    4 each    the log-probabilities of these, float32, minus infinity where there is none
    32        SHA-256 of all before it
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec_core.errors import SpecdecError

if TYPE_CHECKING:
    from specdec_plugin_token_recycling.table import Contents

MAGIC: Final = b"SPDSRCYC"
VERSION: Final = 1
DIGEST: Final = hashlib.sha256().digest_size
HEAD: Final = len(MAGIC) + 8


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
    target = Path(path)
    rows = [len(keys) for keys, _, _ in tables.values()]
    encoded = json.dumps({"candidates": candidates, "namespaces": list(tables), "rows": rows}).encode()
    parts = [MAGIC, np.array([VERSION, len(encoded)], "<u4").tobytes(), encoded]
    for keys, top, logprobs in tables.values():
        parts += [keys.astype("<i4").tobytes(), top.astype("<i4").tobytes(), logprobs.astype("<f4").tobytes()]
    whole = b"".join(parts)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(whole + hashlib.sha256(whole).digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        message = f"token recycling file {target} cannot be written: {error}"
        raise SpecdecError(message) from error


def read(path: str | PathLike[str]) -> Kept:
    """Read a file; raises SpecdecError with the reason for one that is cut off, changed, foreign or too new."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        message = f"token recycling file {path} cannot be read: {error}"
        raise SpecdecError(message) from error
    if not data.startswith(MAGIC) or len(data) < HEAD + DIGEST:
        raise _refused(path, "it is no file of token recycling, or only the beginning of one")
    version, size = (int(number) for number in np.frombuffer(data, "<u4", 2, len(MAGIC)))
    if version != VERSION:
        raise _refused(path, f"it has version {version} of the format, and this is version {VERSION}")
    whole, digest = data[:-DIGEST], data[-DIGEST:]
    if hashlib.sha256(whole).digest() != digest:
        raise _refused(path, "its checksum is wrong: it is cut off or was changed")
    try:
        return _kept(json.loads(whole[HEAD : HEAD + size]), whole[HEAD + size :], digest)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _refused(path, f"its parts do not fit each other ({error})") from error


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


def _refused(path: str | PathLike[str], reason: str) -> SpecdecError:
    return SpecdecError(f"token recycling file {path} cannot be used: {reason}; nothing of it was taken in")
