"""Which requests a drafter may work on while it proposes, and the tables of their pages; it runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from specdec_core.draft import IntArray, RequestView
from specdec_core.errors import ContractError
from specdec_engine.requests.request import Request


class Lent:
    """Requests by name, from the moment that drafts are made until the target is about to run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._requests: Mapping[str, Request] = {}

    @contextmanager
    def lent(self, running: Sequence[Request]) -> Iterator[None]:
        """Lend these requests."""
        self._requests = {request.id: request for request in running}
        try:
            yield
        finally:
            self._requests = {}

    def own(self, request: RequestView) -> Request:
        """Return the request behind a view; raises ContractError for one that no draft may follow now."""
        own = self._requests.get(request.id)
        if own is None or not own.newest_known:
            message = f"request {request.id!r} is inside its prompt or not running: only a draft may follow its rows"
            raise ContractError(message)
        return own


def page_table(requests: Sequence[Request]) -> IntArray:
    """Return the pages of requests in order, [n, most] int32, 0 behind the last of each."""
    table = np.zeros((len(requests), max(len(request.segment.pages) for request in requests)), np.int32)
    for i, request in enumerate(requests):
        table[i, : len(request.segment.pages)] = request.segment.pages
    return table
