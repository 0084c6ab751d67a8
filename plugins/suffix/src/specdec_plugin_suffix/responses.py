"""Responses that requests share: their order, namespaces and limits, over one forest; knows no prompts and no locks.

Each namespace has a trie of its own, so that no match leads from one to another. Responses leave in the order in which
their requests started (docs/suffix.md); under a limit of ids or bytes, the oldest ids of the oldest response first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_plugin_suffix.forest import NO_LIMIT, Forest, Request

if TYPE_CHECKING:
    from specdec_core.draft import IntArray

AT_ONCE: Final = 64  # ids that leave at a time when bytes are short


@dataclass(slots=True, eq=False)
class Namespace:
    """A name, the root of its trie, and how many responses and running requests use it."""

    name: str
    root: int
    users: int = 0


@dataclass(slots=True, eq=False)
class Response:
    """A shared response; `request` while that is running."""

    id: Hashable
    namespace: Namespace
    seq: int
    request: Request | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is shared, and for how long; None = no limit.

    requests  responses; 0 = none at all
    tokens    ids of all of them
    bytes     of what is in use for them
    seconds   that a response stays after its request has stopped
    """

    requests: int | None = 10_000
    tokens: int | None = None
    bytes: int | None = None
    seconds: float | None = None


class Responses:
    """The shared responses of a cache, the oldest first."""

    def __init__(self, forest: Forest, limits: Limits, clock: Callable[[], float]) -> None:
        """Share nothing yet."""
        self._forest: Final = forest
        self._limits: Final = limits
        self._clock: Final = clock
        self._namespaces: dict[str, Namespace] = {}
        self._responses: OrderedDict[Hashable, Response] = OrderedDict()
        self._stopped: OrderedDict[Hashable, float] = OrderedDict()  # when; only of those that will be too old one day

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self._responses)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of the namespaces in use."""
        return tuple(self._namespaces)

    def ids(self) -> list[Hashable]:
        """Return the ids of the responses, the oldest first."""
        return list(self._responses)

    def get(self, request_id: Hashable) -> Response | None:
        """Return the response of a request."""
        return self._responses.get(request_id)

    def find(self, name: str) -> Namespace | None:
        """Return a namespace that is in use."""
        return self._namespaces.get(name)

    def texts(self) -> list[tuple[str, IntArray]]:
        """Return namespace and ids of every response that has any, the oldest first."""
        texts = [(response.namespace.name, self._forest.text(response.seq)) for response in self._responses.values()]
        return [(name, text) for name, text in texts if len(text)]

    def join(self, name: str) -> Namespace:
        """Return a namespace, for somebody who uses it until `leave`."""
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = Namespace(name, self._forest.plant())
        namespace.users += 1
        return namespace

    def leave(self, namespace: Namespace) -> None:
        """Use a namespace no longer; the last user's leaving frees it."""
        namespace.users -= 1
        if not namespace.users:
            self._forest.fell(namespace.root)
            del self._namespaces[namespace.name]

    def begin(self, request_id: Hashable, name: str) -> Response | None:
        """Begin a response; one of that id leaves, and the oldest while there are too many. None: nothing is shared."""
        old = self._responses.get(request_id)
        if old is not None:
            self.evict(old)
        if self._limits.requests == 0:
            return None
        namespace = self.join(name)
        response = self._responses[request_id] = Response(request_id, namespace, self._forest.begin(namespace.root))
        while self._limits.requests is not None and len(self._responses) > self._limits.requests:
            self.evict(next(iter(self._responses.values())))
        return response

    def resume(self, request_id: Hashable, name: str, said: IntArray) -> tuple[Response, int] | None:
        """Return the response that is the beginning of what a request has said, and its length; None if none is."""
        response = self._responses.get(request_id)
        if response is None or response.namespace.name != name:
            return None
        start, end = self._forest.span(response.seq)
        if end == 0 or end > len(said) or not np.array_equal(self._forest.text(response.seq), said[start:end]):
            return None
        self._stopped.pop(request_id, None)
        return response, end

    def stop(self, response: Response) -> None:
        """Note that the request of a response runs no longer."""
        response.request = None
        if self._limits.seconds is not None:
            self._stopped[response.id] = self._clock()

    def evict(self, response: Response) -> None:
        """Let a response leave; its request, if it runs, goes on without."""
        del self._responses[response.id]
        self._stopped.pop(response.id, None)
        self._forest.remove(response.seq, NO_LIMIT)
        self._forest.end(response.seq)
        if response.request is not None:
            response.request.detach()
        self.leave(response.namespace)

    def expire(self) -> None:
        """Let responses leave that are too old."""
        while self._stopped and self._limits.seconds is not None:
            request_id, stopped = next(iter(self._stopped.items()))
            if self._clock() - stopped < self._limits.seconds:
                return
            self.evict(self._responses[request_id])

    def shrink(self) -> None:
        """Let the oldest ids of the oldest responses leave while there are too many ids or bytes."""
        while (excess := self._excess()) > 0:
            before, left = self._forest.tokens, 0
            for response in self._responses.values():
                left = self._forest.remove(response.seq, excess)
                if self._forest.tokens < before or response.request is None:
                    break  # but a running one that has said nothing is passed over
            else:
                return
            if not left:
                self.evict(response)

    def _excess(self) -> int:
        """Return how many ids have to leave, or should, before looking again."""
        tokens, size = self._limits.tokens, self._limits.bytes
        if tokens is not None and self._forest.tokens > tokens:
            return self._forest.tokens - tokens
        return AT_ONCE if size is not None and self._forest.used_bytes > size else 0
