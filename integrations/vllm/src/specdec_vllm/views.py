"""The requests of vLLM's batch as `RequestView`s, told apart by name or by content; knows no method and no proposer.

vLLM keeps known ids in rows of a table, and rows move. A view has a copy of its request's ids, which grows by the new
ones of each step, so it stays what it is wherever its row goes. Where names are known (`ByName`), they tell requests
apart. Where they are not (`ByContent`), a row is the request that ended the last step with exactly the ids that the
row had before its newest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from specdec_core.draft import IntArray
from specdec_core.host.handed import HandedRequest, KnownIds
from specdec_core.host.requests import Slot
from specdec_core.noise import request_key

SEED: Final = 0
TAIL: Final = 64  # ids that are compared where a row is expected to be what it was
PATIENCE: Final = 64  # steps after which a request that is in no row counts as done


class SeenRequest:
    """One request; `view` is the `RequestView` that proposers see.

    key        of the noise for its drafts; vLLM draws by itself, so it decides nothing but a method's own draws
    max_draft  its own limit of drafts a step, None for none, 0 for a request that wants no speculation
    """

    def __init__(self, request_id: str, prompt_len: int, tokens: IntArray, arrival: int) -> None:
        """Copy tokens [n] int32, all that is known; `arrival` numbers the requests."""
        self.id: Final = request_id
        self.seq_index: Final = 0
        self.prompt_len: Final = prompt_len
        self.arrival: Final = arrival
        self.sampling_params: Any = None
        self.extra: Any = None
        self.max_draft: int | None = None
        self.key: Final = request_key(None, SEED, arrival)
        self._ids: Final = KnownIds(tokens)

    def __len__(self) -> int:
        """Return the number of known ids."""
        return len(self._ids)

    @cached_property
    def view(self) -> HandedRequest:
        """What proposers see of it, one object for its whole life; made when all of that is known."""
        return HandedRequest(self.id, self.seq_index, self.prompt_len, self._ids, self.sampling_params, self.extra)

    @property
    def tokens(self) -> IntArray:
        """All known ids, read-only."""
        return self._ids.view

    def append(self, ids: IntArray) -> None:
        """Add ids."""
        self._ids.append(ids)

    def slot(self, run_len: int, newest_known: bool, max_model_len: int) -> Slot:
        """Return its place in a step's call for drafts."""
        room = max_model_len - 1 - len(self)
        most = getattr(self.sampling_params, "max_tokens", None)
        if most is not None:  # drafts behind the last id of the answer would be verified for nothing
            room = min(room, most - (len(self) - self.prompt_len) - 1)
        return Slot(self, run_len, newest_known, room)

    def begins(self, ids: IntArray) -> bool:
        """Return whether its last ids stand in `ids` where they stand in the request; cheap; enough for one name."""
        first, end = max(0, len(self) - TAIL), len(self)
        return end <= len(ids) and bool(np.array_equal(self.tokens[first:end], ids[first:end]))

    def is_all_of(self, ids: IntArray) -> bool:
        """Return whether its ids are exactly `ids`."""
        return len(self) == len(ids) and bool(np.array_equal(self.tokens, ids))


@dataclass(frozen=True)
class Row:
    """A row of the batch that has just sampled: its place, its known ids [n] int32, and how many of them are new."""

    place: int
    ids: IntArray
    new: int


def sampled_rows(sampled: Sequence[Sequence[int]], lengths: Any, table: Any) -> list[Row]:
    """Return the rows with at least one new id; the others are inside their prompts.

    sampled   one sequence of new ids for each row of the batch
    lengths   [rows or more] known ids of each row, the new ones included
    table     [rows or more, positions] int32
    """
    return [Row(i, table[i, : int(lengths[i])], len(ids)) for i, ids in enumerate(sampled) if len(ids)]


class Requests(Protocol):
    """Tells the requests of a batch apart."""

    def update(self, rows: Sequence[Row]) -> tuple[list[SeenRequest], list[SeenRequest]]:
        """Take in a step; return the request of each row, up to date, and the requests that are done."""

    def drain(self) -> list[SeenRequest]:
        """Return all requests that are known, and forget them."""


class ByContent:
    """Tells requests apart by their ids alone.

    A request that is in no row may be done, or be waiting because the cache is full; nothing here can say. It counts
    as done when it has not come back for `patience` steps, or when more than `most` wait. A row that equals no request
    is a new one, and what it had before its new ids counts as its prompt.
    """

    def __init__(self, most: int, patience: int = PATIENCE) -> None:
        """Begin with no request."""
        self._most: Final = most
        self._patience: Final = patience
        self._places: dict[int, SeenRequest] = {}
        self._waiting: dict[SeenRequest, int] = {}  # and the step at which each was missed first
        self._step = 0
        self._arrivals = 0

    def update(self, rows: Sequence[Row]) -> tuple[list[SeenRequest], list[SeenRequest]]:
        """Take in a step; return the request of each row, up to date, and the requests that are done."""
        self._step += 1
        found = self._stayed(rows)
        taken = set(found.values())
        free = [request for request in (*self._places.values(), *self._waiting) if request not in taken]
        for row in rows:
            if row.place not in found:
                found[row.place] = self._moved(row, free) or self._new(row)
        for row in rows:
            found[row.place].append(row.ids[len(row.ids) - row.new :])
        for request in self._places.values():
            self._waiting.setdefault(request, self._step)
        for request in found.values():
            self._waiting.pop(request, None)
        self._places = found
        return [found[row.place] for row in rows], self._done()

    def drain(self) -> list[SeenRequest]:
        """Return all requests that are known, and forget them."""
        known = [*self._places.values(), *self._waiting]
        self._places, self._waiting = {}, {}
        return known

    def _stayed(self, rows: Sequence[Row]) -> dict[int, SeenRequest]:
        """Return the requests that are where they were in the last step."""
        found = {}
        for row in rows:
            request = self._places.get(row.place)
            if request is not None and len(request) == len(row.ids) - row.new and request.begins(row.ids):
                found[row.place] = request
        return found

    def _moved(self, row: Row, free: list[SeenRequest]) -> SeenRequest | None:
        before = row.ids[: len(row.ids) - row.new]
        for i, request in enumerate(free):
            if request.is_all_of(before):
                return free.pop(i)
        return None

    def _new(self, row: Row) -> SeenRequest:
        before = row.ids[: len(row.ids) - row.new]
        self._arrivals += 1
        return SeenRequest(f"request-{self._arrivals}", len(before), before, self._arrivals)

    def _done(self) -> list[SeenRequest]:
        surplus = len(self._waiting) - self._most
        done = [
            request
            for i, (request, step) in enumerate(self._waiting.items())
            if i < surplus or self._step - step >= self._patience
        ]
        for request in done:
            del self._waiting[request]
        return done


@dataclass(frozen=True)
class Names:
    """What vLLM knows of its requests in one step.

    of_rows      name of each row of the batch
    prompt_lens  [rows or more] prompt ids of each row
    alive        names of all requests that have not ended, those that wait included
    states       vLLM's state of each of them, with `sampling_params`
    """

    of_rows: Sequence[str]
    prompt_lens: Any
    alive: Collection[str]
    states: Mapping[str, Any]


class ByName:
    """Tells requests apart by vLLM's names; a request that waits stays what it is, and one that ended is done.

    `welcome` is called with each new request, its `sampling_params` set, before anybody else sees it.
    """

    def __init__(self, names: Callable[[], Names], welcome: Callable[[SeenRequest], None]) -> None:
        """Keep where names are found at each step."""
        self._names: Final = names
        self._welcome: Final = welcome
        self._known: dict[str, SeenRequest] = {}
        self._arrivals = 0

    def update(self, rows: Sequence[Row]) -> tuple[list[SeenRequest], list[SeenRequest]]:
        """Take in a step; return the request of each row, up to date, and the requests that are done."""
        names = self._names()
        found, done = [], []
        for row in rows:
            name = names.of_rows[row.place]
            request = self._known.get(name)
            if request is not None and not request.begins(row.ids):
                done.append(request)  # the name is used again, or the request's text was changed
                request = None
            if request is None:
                request = self._known[name] = self._new(name, row, names)
            else:
                request.append(row.ids[len(request) :])
            found.append(request)
        for name in [name for name in self._known if name not in names.alive]:
            done.append(self._known.pop(name))
        return found, done

    def drain(self) -> list[SeenRequest]:
        """Return all requests that are known, and forget them."""
        known = list(self._known.values())
        self._known = {}
        return known

    def _new(self, name: str, row: Row, names: Names) -> SeenRequest:
        self._arrivals += 1
        prompt_len = min(int(names.prompt_lens[row.place]), len(row.ids))
        request = SeenRequest(name, prompt_len, row.ids, self._arrivals)
        request.sampling_params = getattr(names.states.get(name), "sampling_params", None)
        self._welcome(request)
        return request
