"""`SuffixCache`: drafts for many requests, from any thread; knows neither hosts nor batches.

A request drafts from its own text, prompt included, and from the responses, without their prompts, of all requests of
its namespace, running and stopped (docs/suffix.md).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from specdec_core.errors import SpecdecError
from specdec_plugin_suffix import cache_file
from specdec_plugin_suffix.forest import NO_LIMIT, MakeForest, Request, Rules, installed_forest
from specdec_plugin_suffix.responses import Limits, Namespace, Responses

if TYPE_CHECKING:
    from specdec_core.draft import IntArray

ROOM: Final = 4_096  # ids for which room is made at the beginning where nothing limits them
MOST_ROOM: Final = 2**22  # the same where they are limited, so that nothing has to grow later
BYTES_AN_ID: Final = 100  # about, of shared responses
MOST: Final = 2**20  # ids of a draft
DEFAULT_RULES: Final = Rules()
_INT32: Final = np.dtype(np.int32)


@dataclass(slots=True)
class SuffixDraft:
    """One draft: ids and parents [n] int32 (-1 = the newest id), each id's estimated probability [n] float32.

    score    the sum of the probabilities: how many ids would be accepted on average, were they true
    matched  how many last ids of the request were found
    """

    tokens: IntArray
    parents: IntArray
    probabilities: npt.NDArray[np.float32]
    score: float
    matched: int


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds.

    running, own_bytes   running requests, and the bytes of their own texts
    responses, tokens, namespaces, nodes   what is shared
    used_bytes           of what is shared: what is in use, which `max_bytes` limits
    memory_bytes         of what is shared: the arrays; room never used takes no memory on most systems
    """

    running: int
    own_bytes: int
    responses: int
    tokens: int
    namespaces: int
    nodes: int
    used_bytes: int
    memory_bytes: int


@dataclass(slots=True, eq=False)
class Entry:
    """A running request, for `SuffixCache.step`."""

    request: Request
    rules: Rules
    namespace: Namespace
    stopped: bool = False


class SuffixCache:
    """Drafts for many requests from what they and others have said; every method may be called from any thread."""

    def __init__(
        self,
        depth: int = 24,
        max_requests: int | None = 10_000,
        *,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
        time_to_live: float | None = None,
        forest: MakeForest | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty cache; raises SpecdecError for a limit that cannot be.

        depth         the most ids of a match and its draft together
        max_requests  responses that are shared; 0 = none, None = no limit
        max_tokens    ids of all shared responses; beyond it, the oldest ids of the oldest response leave
        max_bytes     the same, in bytes
        time_to_live  seconds that a response stays after its request has stopped
        forest        the backend; by default the best one installed
        """
        for name, value, least in (
            ("depth", depth, 1), ("max_requests", max_requests, 0), ("max_tokens", max_tokens, 1),
            ("max_bytes", max_bytes, 1), ("time_to_live", time_to_live, 0),
        ):  # fmt: skip
            if value is not None and value < least:
                message = f"suffix cache: {name} is {value}; expected at least {least}"
                raise SpecdecError(message)
        self.depth: Final = depth
        limits = Limits(requests=max_requests, tokens=max_tokens, bytes=max_bytes, seconds=time_to_live)
        self._limits: Final = limits
        self._limited: Final = max_tokens is not None or max_bytes is not None
        self._ages: Final = time_to_live is not None
        room = min(max_tokens or MOST_ROOM, (max_bytes or MOST_ROOM * BYTES_AN_ID) // BYTES_AN_ID, MOST_ROOM)
        self._forest: Final = (forest or installed_forest())(depth, room if self._limited else ROOM)
        self._responses: Final = Responses(self._forest, limits, clock)
        self._running: Final[dict[Hashable, Entry]] = {}
        self._lock: Final = threading.Lock()
        self._merged: Final = hashlib.sha256()

    def start(
        self,
        request_id: Hashable,
        prompt: Sequence[int] | IntArray,
        *,
        namespace: str = "",
        response: Sequence[int] | IntArray = (),
        rules: Rules = DEFAULT_RULES,
    ) -> Entry:
        """Take in a request, new or interrupted; raises SpecdecError if its id is running.

        A response of that id that is still shared leaves, unless it is the beginning of `response`, which is what an
        interrupted request has said so far: then the request goes on where it was.
        """
        said = ids_of(response)
        request = self._forest.request(ids_of(prompt), rules)
        with self._lock:
            if request_id in self._running:
                message = f"suffix cache: request {request_id!r} is running; stop it before it starts again"
                raise SpecdecError(message)
            self._responses.expire()
            entry = self._running[request_id] = Entry(request, rules, self._responses.join(namespace))
            resumed = self._responses.resume(request_id, namespace, said)
            shared, known = resumed or (self._responses.begin(request_id, namespace), 0)
            if shared is not None:
                shared.request = request
            request.attach(entry.namespace.root, 0 if shared is None else shared.seq)
            if len(said):
                request.extend(said, 0, known)
                self._responses.shrink()
            return entry

    def take_in(self, entry: Entry, tokens: IntArray, first: int, first_shared: int) -> None:
        """Extend a running request; see `Request.extend` for the arguments."""
        with self._lock:
            if self._ages:
                self._responses.expire()
            _running(entry).extend(tokens, first, first_shared)
            if self._limited:
                self._responses.shrink()

    def step(
        self,
        entry: Entry,
        tokens: IntArray,
        first: int,
        first_shared: int,
        most: int,
        out: IntArray,
        start: int,
        stride: int,
    ) -> int:
        """Extend a running request and draft for it, in one call; see `Request.draft` for the result."""
        with self._lock:
            if self._ages:
                self._responses.expire()
            n = _running(entry).step(tokens, first, first_shared, most, out, start, stride)
            if self._limited:
                self._responses.shrink()
            return n

    def extend(self, request_id: Hashable, tokens: Sequence[int] | IntArray) -> None:
        """Append ids to the response of a running request."""
        tokens = ids_of(tokens)
        with self._lock:
            if self._ages:
                self._responses.expire()
            self._entry(request_id).request.extend(tokens, 0, 0)
            if self._limited:
                self._responses.shrink()

    def speculate(self, request_id: Hashable, most: int | None = None) -> SuffixDraft:
        """Return a draft of at most `most` ids for a running request (None: as many as its rules allow)."""
        score, matched = 0.0, 0
        with self._lock:
            if self._ages:
                self._responses.expire()
            entry = self._entry(request_id)
            if most is None or not 0 <= most <= MOST:
                most = self._most(entry.rules, most)
            out = np.empty(3 * most, np.int32)
            n = entry.request.draft(most, out, 0, most)
            if n:
                score, matched = entry.request.score, entry.request.matched
        probabilities = out[2 * most : 2 * most + n].view(np.float32)
        return SuffixDraft(out[:n], out[most : most + n], probabilities, score, matched)

    def stop(self, request_id: Hashable) -> None:
        """End a running request: its own text is forgotten, its response stays shared."""
        with self._lock:
            entry = self._entry(request_id)
            del self._running[request_id]
            response = self._responses.get(request_id)
            if response is not None and response.request is entry.request:
                self._responses.stop(response)
            self._responses.leave(entry.namespace)
            entry.request.release()
            entry.stopped = True

    def evict(self, request_id: Hashable) -> None:
        """Take the response of a request out of what is shared; the request, if it is running, goes on alone."""
        with self._lock:
            response = self._responses.get(request_id)
            if response is None:
                message = f"suffix cache: no response of {request_id!r} is shared"
                raise SpecdecError(message)
            self._responses.evict(response)

    def running(self) -> list[Hashable]:
        """Return the ids of running requests."""
        with self._lock:
            return list(self._running)

    def shared(self) -> list[Hashable]:
        """Return the ids whose responses are shared, the oldest first."""
        with self._lock:
            return self._responses.ids()

    def stats(self) -> CacheStats:
        """Return what the cache holds."""
        with self._lock:
            forest = self._forest
            return CacheStats(
                running=len(self._running),
                own_bytes=sum(entry.request.memory_bytes() for entry in self._running.values()),
                responses=len(self._responses),
                tokens=forest.tokens,
                namespaces=len(self._responses.namespaces),
                nodes=forest.nodes,
                used_bytes=forest.used_bytes,
                memory_bytes=forest.memory_bytes(),
            )

    def counts(self, namespace: str = "") -> dict[tuple[int, ...], int]:
        """Return how often each string of at most `depth` ids was said in a namespace; slow."""
        with self._lock:
            found = self._responses.find(namespace)
            return {} if found is None else {string: count for string, count, _ in self._forest.walk(found.root)}

    def save(self, path: str | PathLike[str]) -> None:
        """Write all shared responses to a file, which is replaced as a whole or not at all."""
        with self._lock:
            texts = self._responses.texts()
        cache_file.write(path, self.depth, texts)

    def files_digest(self) -> bytes:
        """Return a SHA-256 over the contents of all files that were merged, in order; with none, that of nothing."""
        return self._merged.digest()

    def merge(self, path: str | PathLike[str]) -> int:
        """Add the responses of a file as the newest ones, within all limits; return how many the file has.

        Raises SpecdecError, with nothing added, for a file that is not whole, and where nothing is shared.
        """
        if self._limits.requests == 0:
            message = f"suffix cache: {path} cannot be added to a cache that shares nothing; raise max_requests"
            raise SpecdecError(message)
        contents = cache_file.read(path)
        texts = contents.texts
        kept = texts if self._limits.requests is None else texts[-self._limits.requests :]
        with self._lock:
            self._merged.update(contents.digest)
            for namespace, tokens in kept:
                response = self._responses.begin(object(), namespace)
                if response is not None:
                    self._forest.append(response.seq, tokens)
                    self._responses.stop(response)
                    self._responses.shrink()
        return len(texts)

    def _most(self, rules: Rules, most: int | None) -> int:
        """Return how many ids a draft may have if nothing sensible was said."""
        if most is None:
            most = int(self.depth * rules.max_factor + rules.offset) + 1 if rules.tree else self.depth
        return min(max(most, 0), MOST)

    def _entry(self, request_id: Hashable) -> Entry:
        entry = self._running.get(request_id)
        if entry is None:
            message = f"suffix cache: request {request_id!r} is not running; start it first"
            raise SpecdecError(message)
        return entry


def _running(entry: Entry) -> Request:
    """Return the request of an entry; raises SpecdecError if it has stopped, for its memory is another's by now."""
    if entry.stopped:
        message = "suffix cache: this request has stopped; start it again"
        raise SpecdecError(message)
    return entry.request


def ids_of(tokens: Sequence[int] | IntArray) -> IntArray:
    """Return ids as an array [n] int32, the same one if it is one; raises SpecdecError for what are no ids."""
    if type(tokens) is np.ndarray and tokens.dtype is _INT32 and tokens.strides == (4,):
        return tokens
    array = np.asarray(tokens)
    given = array.dtype == _INT32  # such an array may have placeholders in it, below 0
    if array.ndim != 1 or not (array.size == 0 or given or _are_ids(array)):
        message = f"suffix cache: expected a flat sequence of ids in 0..{NO_LIMIT}, got {str(tokens)[:80]}"
        raise SpecdecError(message)
    return np.ascontiguousarray(array, np.int32)


def _are_ids(array: npt.NDArray[np.generic]) -> bool:
    """Return whether all of a non-empty array are whole numbers in 0..NO_LIMIT."""
    return array.dtype.kind in "iu" and 0 <= int(array.min()) and int(array.max()) <= NO_LIMIT
