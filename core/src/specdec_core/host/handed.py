"""What a host hands to a plugin, so that nothing a plugin does to it reaches the host; knows no step and no method."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from specdec_core.errors import PluginCallError

IntArray = npt.NDArray[np.int32]
Kind = TypeVar("Kind", bound=np.generic)

ROOM: Final = 64  # ids that a request has room for at the least


def read_only(array: npt.ArrayLike | npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """Return a copy that nobody can write into, nor make writable; the array given stays as it is.

    One that is such a copy already, or a part of one, is returned itself.
    """
    given = np.asarray(array)
    if not given.flags.writeable and given.flags.c_contiguous:
        owner: Any = given.base
        if type(owner) is bytes or (type(owner) is np.ndarray and type(owner.base) is bytes):
            return given
    if not given.size:
        empty = np.empty(given.shape, given.dtype)
        empty.flags.writeable = False
        return empty
    return np.frombuffer(given.tobytes(), given.dtype).reshape(given.shape)


class KnownIds:
    """The ids of one request, prompt first, in a buffer that grows by doubling; only the owner of this adds to them."""

    __slots__ = ("_buffer", "_shown", "view")

    view: IntArray

    def __init__(self, ids: IntArray) -> None:
        """Copy ids [n] int32."""
        self._make_room(ids[:0], max(ROOM, 2 * len(ids)))
        self.view = self._shown[:0]
        self.append(ids)

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.view)

    def append(self, ids: IntArray) -> None:
        """Add ids [n]; `view`, [all of them] int32, is then a new array that cannot be made writable."""
        start, end = len(self.view), len(self.view) + len(ids)
        if end > len(self._buffer):
            self._make_room(self.view, max(end, 2 * len(self._buffer)))
        self._buffer[start:end] = ids
        self.view = self._shown[:end]

    def _make_room(self, ids: IntArray, size: int) -> None:
        self._buffer: IntArray = np.empty(size, np.int32)
        self._buffer[: len(ids)] = ids
        self._shown: IntArray = np.frombuffer(self._buffer.data.toreadonly(), np.int32)


class HandedRequest:
    """The `RequestView` that plugins get: what the protocol lists, read-only, and nothing of the host's own state."""

    __slots__ = ("__weakref__", "_extra", "_id", "_ids", "_prompt_len", "_sampling_params", "_seq_index")

    def __init__(
        self, request_id: str, seq_index: int, prompt_len: int, ids: KnownIds, sampling_params: Any, extra: Any
    ) -> None:
        """Show `ids`, which the host goes on to lengthen."""
        self._id: Final = request_id
        self._seq_index: Final = seq_index
        self._prompt_len: Final = prompt_len
        self._ids: Final = ids
        self._sampling_params: Final = sampling_params
        self._extra: Final = extra

    def __repr__(self) -> str:
        """Name the request."""
        return f"{type(self).__name__}({self._id!r})"

    @property
    def id(self) -> str:
        """Name of the request."""
        return self._id

    @property
    def seq_index(self) -> int:
        """Index of this sample among the samples of its prompt."""
        return self._seq_index

    @property
    def prompt_len(self) -> int:
        """Number of prompt ids."""
        return self._prompt_len

    @property
    def tokens(self) -> IntArray:
        """All known ids."""
        return self._ids.view

    @property
    def sampling_params(self) -> Any:
        """The request's sampling parameters, as the host's own object."""
        return self._sampling_params

    @property
    def extra(self) -> Any:
        """Validated request options of the method, or None."""
        return self._extra


class OnlyErrors:
    """A context for one call of a plugin's object: what would end the process becomes an error that can be contained.

    Exceptions and KeyboardInterrupt pass through as they are; SystemExit, GeneratorExit and whatever else derives from
    BaseException alone become a `PluginCallError` with the cause chained.
    """

    __slots__ = ("_call", "_who")

    def __init__(self, who: str, call: str) -> None:
        """Name the plugin in words, and what is called."""
        self._who = who
        self._call = call

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise PluginCallError in place of what is no Exception."""
        if error is not None and not isinstance(error, Exception | KeyboardInterrupt):
            raise PluginCallError(self._who, self._call, error) from error
