"""The file that shared responses are kept in: written at once or not at all, read as a whole or not at all.

All numbers are little-endian.

    8 bytes   "SPDSUFFX"
    4         version of the format, 1
    4         length of the description
    ...       the description, UTF-8 JSON: {"depth", "namespaces": [names], "responses", "tokens"}
    4 each    for each response, the oldest first: index of its namespace
    4 each    for each response: how many ids it has, at least one
    4 each    the ids of all responses, one response after the other, each in 0..2**31 - 1
    32        SHA-256 of all before it

The description may have further keys, which readers of this version pass over. Prompts are not in the file, nor is the
shape of any trie: a reader takes the responses in anew, one after the other. So where two continuations are equally
frequent, their order after reading is that of a cache that heard the responses one after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec_core.errors import SpecdecError

if TYPE_CHECKING:
    from specdec_core.draft import IntArray

MAGIC: Final = b"SPDSUFFX"
VERSION: Final = 1
DIGEST: Final = hashlib.sha256().digest_size
HEAD: Final = len(MAGIC) + 8


@dataclass(frozen=True)
class Contents:
    """What is in a file: the depth of the cache that wrote it; namespace and ids of each response, the oldest first.

    `digest` is the file's own SHA-256, which is the same if and only if all of this is.
    """

    depth: int
    texts: list[tuple[str, IntArray]]
    digest: bytes

    @property
    def vocabulary(self) -> int:
        """One more than the largest id."""
        return 1 + max((int(ids.max()) for _, ids in self.texts), default=-1)


def write(path: str | PathLike[str], depth: int, texts: Sequence[tuple[str, IntArray]]) -> None:
    """Write responses, as (namespace, ids [n] int32, n > 0), to a file, which is replaced when the new one is whole.

    Raises SpecdecError if it cannot be written; what was there stays.
    """
    target = Path(path)
    names = list(dict.fromkeys(name for name, _ in texts))
    index = {name: i for i, name in enumerate(names)}
    lengths = [len(ids) for _, ids in texts]
    description = {"depth": depth, "namespaces": names, "responses": len(texts), "tokens": sum(lengths)}
    encoded = json.dumps(description).encode()
    parts = [MAGIC, np.array([VERSION, len(encoded)], "<u4").tobytes(), encoded]
    parts += [np.array(column, "<i4").tobytes() for column in ([index[name] for name, _ in texts], lengths)]
    parts += [ids.astype("<i4").tobytes() for _, ids in texts]
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
        message = f"suffix cache file {target} cannot be written: {error}"
        raise SpecdecError(message) from error


def read(path: str | PathLike[str]) -> Contents:
    """Read a file; raises SpecdecError, saying what is wrong, for one that is cut off, changed, foreign or too new."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        message = f"suffix cache file {path} cannot be read: {error}"
        raise SpecdecError(message) from error
    if not data.startswith(MAGIC) or len(data) < HEAD + DIGEST:
        raise _refused(path, "it is no suffix cache file, or only the beginning of one")
    version, size = (int(number) for number in np.frombuffer(data, "<u4", 2, len(MAGIC)))
    if version != VERSION:
        raise _refused(path, f"it has version {version} of the format, and this is version {VERSION}")
    whole, digest = data[:-DIGEST], data[-DIGEST:]
    if hashlib.sha256(whole).digest() != digest:
        raise _refused(path, "its checksum is wrong: it is cut off or was changed")
    try:
        description = json.loads(whole[HEAD : HEAD + size])
        return _contents(description, np.frombuffer(whole[HEAD + size :], "<i4"), digest)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _refused(path, f"its parts do not fit each other ({error})") from error


def _contents(description: dict[str, Any], numbers: IntArray, digest: bytes) -> Contents:
    """Take the numbers apart; raises ValueError, KeyError, TypeError or IndexError if they do not fit."""
    names, count = description["namespaces"], int(description["responses"])
    spaces, lengths, ids = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    if count < 0 or len(lengths) != count or (lengths < 1).any() or lengths.sum(dtype=np.int64) != len(ids):
        message = f"{len(ids)} ids for {count} responses"
        raise ValueError(message)
    if not all(isinstance(name, str) for name in names) or (spaces < 0).any() or (ids < 0).any():
        message = "a namespace or an id is not one"
        raise ValueError(message)
    ends = np.cumsum(lengths, dtype=np.int64)
    texts = np.split(ids.astype(np.int32), ends[:-1]) if count else []
    responses = [(names[i], text) for i, text in zip(spaces, texts, strict=True)]
    return Contents(int(description["depth"]), responses, digest)


def _refused(path: str | PathLike[str], reason: str) -> SpecdecError:
    return SpecdecError(f"suffix cache file {path} cannot be used: {reason}; nothing of it was taken in")
