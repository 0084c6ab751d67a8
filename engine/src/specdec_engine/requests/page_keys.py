"""Names for the pages of a request's ids: equal keys mean equal ids and salts; knows no arena."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from specdec_core.draft import IntArray

KEY_BYTES: Final = 16


class PageKeys:
    """The keys of one request's pages, each a digest of its ids and of the key before it, made when asked for."""

    def __init__(self, generation: int = -1, table: int = 0, salt: str | None = None) -> None:
        """Keys of different generations, of rows turned by different rotary tables, and of different salts differ."""
        self.generation = generation
        self.table = table
        self._salt = bytes(KEY_BYTES) if salt is None else blake2b(salt.encode(), digest_size=KEY_BYTES).digest()
        self._keys: list[bytes] = []

    def first(self, count: int, ids: IntArray, page_size: int) -> list[bytes]:
        """Return the keys of the first `count` pages; `ids` are the request's, [at least count * page_size] int32."""
        while len(self._keys) < count:
            at = len(self._keys) * page_size
            before = self._keys[-1] if self._keys else self._root()
            self._keys.append(blake2b(before + ids[at : at + page_size].tobytes(), digest_size=KEY_BYTES).digest())
        return self._keys[:count]

    def _root(self) -> bytes:
        numbers = self.generation.to_bytes(KEY_BYTES, "little", signed=True), self.table.to_bytes(KEY_BYTES, "little")
        return b"".join((*numbers, self._salt))
