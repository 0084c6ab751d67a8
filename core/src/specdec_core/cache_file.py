"""Files in which methods keep what they have learned: written at once or not at all, read as a whole or not at all.

All numbers are little-endian.

    8 bytes   which method's file it is
    4         version of the format
    4         length of the description
    ...       the description, UTF-8 JSON
    ...       the method's own data
    32        SHA-256 of all before it

The description may have keys beyond those of its version, which readers pass over.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

from specdec_core.errors import SpecdecError
from specdec_core.sources import Problem

Parsed = TypeVar("Parsed")

DIGEST: Final = hashlib.sha256().digest_size
NUMBERS: Final = struct.Struct("<II")  # version, length of the description


@dataclass(frozen=True)
class CacheFile:
    """A kind of file.

    magic    the first 8 bytes
    version  of the format
    noun     what messages call such a file, e.g. "suffix cache file"
    """

    magic: bytes
    version: int
    noun: str

    def write(self, path: str | PathLike[str], description: dict[str, Any], data: Sequence[bytes]) -> None:
        """Write a file, which is replaced when the new one is whole.

        Raises SpecdecError if it cannot be written; what was there stays.
        """
        target, encoded = Path(path), json.dumps(description).encode()
        whole = b"".join([self.magic, NUMBERS.pack(self.version, len(encoded)), encoded, *data])
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
            message = f"{self.noun} {target} cannot be written: {error}"
            raise SpecdecError(message) from error

    def read(self, path: str | PathLike[str], parse: Callable[[dict[str, Any], bytes, bytes], Parsed]) -> Parsed:
        """Return what `parse` makes of description, data and digest.

        It raises ValueError, KeyError, TypeError or IndexError where they do not fit each other. Raises SpecdecError,
        saying what is wrong, for a file that is cut off, changed, foreign or too new.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            message = f"{self.noun} {path} cannot be read: {error}"
            raise SpecdecError(message) from error
        head = len(self.magic) + NUMBERS.size
        if not content.startswith(self.magic) or len(content) < head + DIGEST:
            raise self._refused(path, f"it is no {self.noun}, or only the beginning of one")
        version, size = NUMBERS.unpack_from(content, len(self.magic))
        if version != self.version:
            raise self._refused(path, f"it has version {version} of the format, and this is version {self.version}")
        whole, digest = content[:-DIGEST], content[-DIGEST:]
        if hashlib.sha256(whole).digest() != digest:
            raise self._refused(path, "its checksum is wrong: it is cut off or was changed")
        try:
            return parse(json.loads(whole[head : head + size]), whole[head + size :], digest)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise self._refused(path, f"its parts do not fit each other ({error})") from error

    def _refused(self, path: str | PathLike[str], reason: str) -> SpecdecError:
        return SpecdecError(f"{self.noun} {path} cannot be used: {reason}; nothing of it was taken in")


def file_problems(
    load: str | None, save: str | None, vocab_size: int, vocabulary: Callable[[str], int]
) -> list[Problem]:
    """Return what is wrong with the options `load_cache` and `save_cache` of a method.

    `vocabulary` reads a file and returns one more than its largest id; it raises SpecdecError for one it cannot use.
    """
    problems = []
    if load is not None:
        try:
            largest = vocabulary(load) - 1
        except SpecdecError as error:
            problems.append(Problem(key="load_cache", message=str(error)))
        else:
            if largest >= vocab_size:
                message = f"{load} has the id {largest}, and the target's vocabulary is 0..{vocab_size - 1}"
                next_step = "give a file that was written with the same tokenizer"
                problems.append(Problem(key="load_cache", message=message, next_step=next_step))
    if save is not None and not Path(save).absolute().parent.is_dir():
        message = f"{save} is in a folder that does not exist"
        problems.append(Problem(key="save_cache", message=message, next_step="make the folder first"))
    return problems
