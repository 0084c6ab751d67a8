"""The index of one request's ids: owns the arrays of the suffix automaton and their growth; knows no requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specdec_plugin_ngram.kernels import numba as automaton

if TYPE_CHECKING:
    from specdec_core.draft import IntArray

SPARE = 256  # room for a short answer before the first growth


class Index:
    """Finds the longest suffix of the ids that occurred before; O(1) amortised an id, O(n) memory whatever the range.

    Memory is at most 80 bytes an id of room; the room is a quarter above what was needed when it last grew.
    """

    __slots__ = ("edges", "meta", "room", "states", "table")

    def __init__(self, low: int, high: int, *, latest: bool, vocab_size: int, room: int = 0) -> None:
        """Look for suffixes of low..high ids, earliest or latest occurrence; ids from vocab_size on end a draft."""
        self.meta = np.zeros(automaton.META_SIZE, np.int64)
        self.meta[automaton.LOW], self.meta[automaton.HIGH] = low, high
        self.meta[automaton.TAKE_LATEST], self.meta[automaton.VOCAB] = latest, vocab_size
        self.meta[automaton.STATES] = 1
        self.states = np.zeros((1, automaton.STATE_COLUMNS), np.int32)
        for column in (automaton.LINK, automaton.NEXT, automaton.HEAD):
            self.states[automaton.ROOT, column] = automaton.NONE
        self.edges = np.empty((0, automaton.EDGE_COLUMNS), np.int32)
        self.table = np.zeros(1, np.int32)
        self.room = 0
        self.reserve(room)

    @property
    def size(self) -> int:
        """Number of ids taken in."""
        return int(self.meta[automaton.SIZE])

    @property
    def steps(self) -> int:
        """Elementary steps done so far (states visited, table probes, copied edges), for tests of cost."""
        return int(self.meta[automaton.STEPS])

    @property
    def repeated(self) -> int:
        """How many last ids occurred before: the longest suffix that did, however long; 0 for none, or no ids."""
        newest = self.meta[automaton.NEWEST]
        link = self.states[newest, automaton.LINK]
        return int(self.states[link, automaton.LENGTH]) if link >= 0 else 0

    def reserve(self, size: int) -> None:
        """Make room for `size` ids and a quarter more."""
        if size <= self.room:
            return
        self.room = room = size + size // 4 + SPARE
        self.states = _grown(self.states, int(self.meta[automaton.STATES]), 2 * room)
        used = int(self.meta[automaton.EDGES])
        self.edges = _grown(self.edges, used, room)
        slots = 1 << (5 * room // 4).bit_length()
        if slots > self.table.size:
            self.table = np.zeros(slots, np.int32)
            automaton.refill(self.edges, self.table, used)

    def extend(self, tokens: IntArray) -> None:
        """Take in the ids of tokens [n] int32 that are new since the last call; earlier ids must not have changed."""
        if len(tokens) > self.room:
            self.reserve(len(tokens))
        automaton.extend(self.states, self.edges, self.table, self.meta, tokens)

    def propose(self, tokens: IntArray, k: int, out: IntArray, start: int) -> int:
        """Take in new ids, write at most k draft ids to out[start:], return how many."""
        if len(tokens) > self.room:
            self.reserve(len(tokens))
        count: int = automaton.propose(self.states, self.edges, self.table, self.meta, tokens, k, out, start)
        return count

    def memory_bytes(self) -> int:
        """Return the bytes of the arrays, room included."""
        return sum(array.nbytes for array in (self.states, self.edges, self.table, self.meta))


def _grown(array: IntArray, used: int, rows: int) -> IntArray:
    """Return a copy of the first `used` rows in an array of `rows` rows."""
    new = np.empty((rows, array.shape[1]), np.int32)
    new[:used] = array[:used]
    return new
