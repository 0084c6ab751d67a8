"""The file that shared responses are kept in, a `specdec_core.cache_file.CacheFile`.

The description is {"depth", "namespaces": [names], "responses", "tokens"}, the data little-endian numbers of 4 bytes:

    for each response, the oldest first: index of its namespace
    for each response: how many ids it has, at least one
    the ids of all responses, one response after the other, each in 0..2**31 - 1

Prompts are not in the file, nor is the shape of any trie: a reader takes the responses in anew, one after the other. So
where two continuations are equally frequent, their order after reading is that of a cache that heard the responses one
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from specdec_core.cache_file import CacheFile

if TYPE_CHECKING:
    from specdec_core.draft import IntArray

FILE: Final = CacheFile(b"SPDSUFFX", 1, "suffix cache file")


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
    names = list(dict.fromkeys(name for name, _ in texts))
    index = {name: i for i, name in enumerate(names)}
    lengths = [len(ids) for _, ids in texts]
    description = {"depth": depth, "namespaces": names, "responses": len(texts), "tokens": sum(lengths)}
    data = [np.array(column, "<i4").tobytes() for column in ([index[name] for name, _ in texts], lengths)]
    data += [ids.astype("<i4").tobytes() for _, ids in texts]
    FILE.write(path, description, data)


def read(path: str | PathLike[str]) -> Contents:
    """Read a file; raises SpecdecError, saying what is wrong, for one that is cut off, changed, foreign or too new."""
    return FILE.read(path, _contents)


def _contents(description: dict[str, Any], data: bytes, digest: bytes) -> Contents:
    """Take the numbers apart; raises ValueError, KeyError, TypeError or IndexError if they do not fit."""
    numbers = np.frombuffer(data, "<i4")
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
