"""The compiled backend of `suffix_forest`: owns the arrays of forests and their growth; knows no cache.

Not safe for threads: whoever shares a forest keeps calls on it, and on its requests, apart. The interpreter's lock is
released during a call into compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_core.errors import SpecdecError
from specdec_plugin_suffix.kernels import layout as at
from specdec_plugin_suffix.kernels.calls import (
    SHORT_OF_OUT,
    SHORT_OF_OWN,
    SHORT_OF_SHARED,
    append_ids,
    clear,
    draft,
    extend,
    free_seq,
    has_room,
    needs,
    new_root,
    new_seq,
    refill,
    remove_first,
    step,
)

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_suffix.forest import Rules

SPARE: Final = 256  # room for a short answer before a request's own arrays grow
HEAP_ROWS: Final = 256
IDLE, IDLE_BYTES = 16, 2**18  # own forests kept for further requests, and the most bytes of one
LARGEST: Final = 2**31 - 1  # rows are named by int32
_NOTHING: Final = np.empty(0, np.int32)
_SEQS: Final = 2 * at.SEQ_WIDTH  # numbers of the first sequences: "none" and one


class Forest:
    """Tries in flat arrays; see `specdec_plugin_suffix.forest.Forest`."""

    def __init__(self, depth: int, tokens: int = 0, *, own_words: int = 0) -> None:
        """Make an empty forest with room for some ids; with `own_words` (int64), for one sequence and those words."""
        self.words: Final = np.zeros(at.HEAD_SIZE + _SEQS + own_words, np.int64)
        self.address: Final[int] = self.words.ctypes.data
        self.head: Final = self.words[: at.HEAD_SIZE]
        self._seqs = self.words[at.HEAD_SIZE : at.HEAD_SIZE + _SEQS].view(np.int32)
        self._nodes = self._ties = self._text = self._table = _NOTHING
        self._idle: Final[list[Forest]] = []  # own forests of requests that have ended
        head = self.head
        block = at.ENDLESS if own_words else 1 << (max(at.LEAST_BLOCK, depth) - 1).bit_length()
        head[at.DEPTH], head[at.BLOCK] = depth, block
        head[at.SEQS_AT], head[at.SEQ_ROWS] = self.address + 8 * at.HEAD_SIZE, 2
        clear(self.address)
        self._resize(*needs(self.address, tokens))

    @property
    def tokens(self) -> int:
        """Ids in the tries."""
        return int(self.head[at.TOKENS])

    @property
    def nodes(self) -> int:
        """Nodes of the tries, roots included."""
        return int(self.head[at.NODE_COUNT])

    @property
    def used_bytes(self) -> int:
        """Bytes of what is in use, without room for more."""
        head: list[int] = self.head.tolist()
        text = head[at.BLOCK_COUNT] * (1 + head[at.BLOCK] + head[at.DEPTH]) * at.TEXT_WIDTH
        nodes = head[at.NODE_COUNT] * at.NODE_WIDTH + head[at.TIE_COUNT] * at.TIE_WIDTH
        return 4 * (text + nodes + head[at.TABLE_SLOTS] + head[at.SEQ_COUNT] * at.SEQ_WIDTH)

    def memory_bytes(self) -> int:
        """Return the bytes of all arrays, room included."""
        arrays = (self.words, self._nodes, self._ties, self._text, self._table, self._seqs)
        return sum(array.nbytes for array in arrays)

    def plant(self) -> int:
        """Make an empty trie; return its root."""
        self.make_room(0)
        root: int = new_root(self.address)
        return root

    def fell(self, root: int) -> None:
        """Drop an empty trie."""
        self._nodes[root + at.NEXT] = self.head[at.NODE_FREE]
        self.head[at.NODE_FREE] = root
        self.head[at.NODE_COUNT] -= 1

    def begin(self, root: int) -> int:
        """Begin an empty sequence in a trie; return its number."""
        seq: int = new_seq(self.address, root)
        if seq == 0:
            old, self._seqs = self._seqs, np.zeros(2 * len(self._seqs), np.int32)
            self._seqs[: len(old)] = old
            self.head[at.SEQS_AT], self.head[at.SEQ_ROWS] = self._seqs.ctypes.data, len(self._seqs) // at.SEQ_WIDTH
            seq = new_seq(self.address, root)
        return seq

    def append(self, seq: int, tokens: IntArray) -> None:
        """Append ids [n] int32 to a sequence."""
        self.make_room(len(tokens))
        append_ids(self.address, seq, tokens)

    def remove(self, seq: int, count: int) -> int:
        """Remove the first ids of a sequence, at most `count`; return how many stay."""
        left: int = remove_first(self.address, seq, count)
        return left

    def end(self, seq: int) -> None:
        """Give the number of an empty sequence back."""
        free_seq(self.address, seq)

    def span(self, seq: int) -> tuple[int, int]:
        """Return how many ids of a sequence have been removed, and how many were ever appended."""
        return int(self._seqs[seq + at.START]), int(self._seqs[seq + at.LENGTH])

    def text(self, seq: int) -> IntArray:
        """Return a copy of what is left of a sequence, [n] int32."""
        block, (start, length) = int(self._seqs[seq + at.FIRST_BLOCK]), self.span(seq)
        size, parts = int(self.head[at.BLOCK]), [_NOTHING]
        while start < length:
            count = min(size - start % size, length - start)
            first = block + at.TEXT_WIDTH * (1 + start % size)
            parts.append(self._text[first : first + at.TEXT_WIDTH * count : at.TEXT_WIDTH])
            block, start = int(self._text[block + at.NEXT_BLOCK]), start + count
        return np.concatenate(parts)

    def request(self, prompt: IntArray, rules: Rules) -> Request:
        """Return a request with a prompt, attached to nothing; safe while other threads use the forest."""
        return Request(self, prompt, rules)

    def lend(self, tokens: int, words: int) -> Forest:
        """Return an empty own forest with room for some ids, used before or new."""
        try:
            own = self._idle.pop()
        except IndexError:
            return Forest(int(self.head[at.DEPTH]), tokens, own_words=words)
        own.make_room(tokens)
        return own

    def take_back(self, own: Forest) -> None:
        """Keep an own forest for the next request, unless there are enough or it is large."""
        if len(self._idle) < IDLE and own.memory_bytes() <= IDLE_BYTES:
            clear(own.address)
            self._idle.append(own)

    def walk(self, root: int) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
        """Yield each string of a trie, its count, and the ids that follow it, in order."""
        todo: list[tuple[int, tuple[int, ...]]] = [(root, ())]
        while todo:
            node, before = todo.pop()
            row = self._nodes[node : node + at.NODE_WIDTH].tolist()
            first = row[at.SUFFIX] + at.TEXT_WIDTH * len(before)
            run = self._text[first :: at.TEXT_WIDTH][: max(0, row[at.BOTTOM] - len(before))].tolist()
            if at.END_OF_TEXT in run:
                run = run[: run.index(at.END_OF_TEXT)]
            for i in range(1, len(run)):
                yield (*before, *run[:i]), row[at.COUNT], (run[i],)
            child, followers = abs(row[at.FIRST]), list[int]()
            while child:
                followers.append(int(self._nodes[child + at.TOKEN]))
                todo.append((child, (*before, *run)))
                child = int(self._nodes[child + at.NEXT])
            if run:
                yield (*before, *run), row[at.COUNT], tuple(followers)

    def make_room(self, count: int) -> None:
        """Make room for `count` more ids, and for as many as there are."""
        if not has_room(self.address, count):
            self._resize(*needs(self.address, max(count, self.tokens)))

    def _resize(self, rows: int, text: int, entries: int) -> None:
        """Move to larger arrays: rows of nodes and of text, and a table for some entries."""
        head = self.head
        rows, text = max(rows, int(head[at.NODE_ROWS])), max(text, int(head[at.TEXT_ROWS]))
        slots = max(1 << (4 * entries // 3).bit_length(), int(head[at.TABLE_SLOTS]))
        sizes = (rows * at.NODE_WIDTH, (rows // 2 + 2) * at.TIE_WIDTH, text * at.TEXT_WIDTH, slots)
        if max(sizes) > LARGEST:
            message = (
                f"suffix: the cache would need an array of {max(sizes)} numbers, and the limit is {LARGEST}; "
                "set max_cached_tokens or max_cached_bytes"
            )
            raise SpecdecError(message)
        old = (self._nodes, self._ties, self._text, self._table)
        used = (int(head[at.NODE_TOP]), int(head[at.TIE_TOP]), int(head[at.BLOCK_TOP]), 0)
        buffer = np.zeros(sum(sizes), np.int32)  # untouched, room takes no memory
        start, address = 0, buffer.ctypes.data
        parts: list[IntArray] = []
        for slot, (size, array, count) in enumerate(zip(sizes, old, used, strict=True)):
            parts.append(buffer[start : start + size])
            parts[-1][: min(count, len(array))] = array[:count]
            head[at.NODES_AT + slot] = address + 4 * start
            start += size
        self._nodes, self._ties, self._text, self._table = parts
        head[at.NODE_ROWS], head[at.TEXT_ROWS], head[at.TABLE_SLOTS] = rows, text, slots
        if len(old[3]):
            refill(self.address, old[3].ctypes.data, len(old[3]))


class Request:
    """One request; see `specdec_plugin_suffix.forest.Request`."""

    def __init__(self, shared: Forest, prompt: IntArray, rules: Rules) -> None:
        """Make a trie of the prompt."""
        words = at.QUERY_SIZE + int(shared.head[at.DEPTH]) + 1  # its query, and scratch memory for matches
        self._shared = shared
        self._own = own = shared.lend(len(prompt) + SPARE, words)
        append_ids(own.address, 0, prompt)
        self._query = query = own.words[-words:]
        query[:] = 0
        numbers = query.view(np.float32)
        self._integers, self._floats = query.data, numbers.data  # quicker to read one number from
        self._address: int = own.address + own.words.nbytes - query.nbytes
        query[at.OWN], query[at.VOCABULARY] = own.address, rules.vocabulary
        query[at.TREE], query[at.WHOLE] = rules.tree, rules.match_whole
        numbers[2 * at.FACTOR], numbers[2 * at.OFFSET] = rules.max_factor, rules.offset
        numbers[2 * at.LEAST] = rules.min_probability
        query[at.SCRATCH_AT] = self._address + 8 * at.QUERY_SIZE
        if rules.tree:
            self._reserve(HEAP_ROWS)

    @property
    def score(self) -> float:
        """The sum of the probabilities of the last draft."""
        return self._floats[2 * at.SCORE]

    @property
    def matched(self) -> int:
        """How many last ids were found for the last draft."""
        return self._integers[at.MATCHED]

    def extend(self, tokens: IntArray, first: int, first_shared: int) -> None:
        """Append tokens[first:] to the own text and tokens[first_shared:] to the shared one."""
        while short := extend(self._address, tokens, first, first_shared):
            self._relieve(short, len(tokens) - first)

    def draft(self, most: int, out: IntArray, start: int, stride: int) -> int:
        """Draft at most `most` ids; return how many."""
        n: int = draft(self._address, most, out, start, stride)
        while n < 0:
            self._relieve(n, 0)
            n = draft(self._address, most, out, start, stride)
        return n

    def step(
        self, tokens: IntArray, first: int, first_shared: int, most: int, out: IntArray, start: int, stride: int
    ) -> int:
        """Extend and draft in one call."""
        n: int = step(self._address, tokens, first, first_shared, most, out, start, stride)
        if n < 0:
            self._relieve(n, len(tokens) - first)
            if n in (SHORT_OF_OWN, SHORT_OF_SHARED):
                self.extend(tokens, first, first_shared)
            return self.draft(most, out, start, stride)
        return n

    def attach(self, root: int, seq: int) -> None:
        """Look into a shared trie too, and append to a sequence in it (0: to none)."""
        self._query[at.SHARED], self._query[at.TRIE] = self._shared.address, root
        self._query[at.SEQUENCE] = seq

    def detach(self) -> None:
        """Forget the shared sequence, which has been removed; the trie that it was in is still looked into."""
        self._query[at.SEQUENCE] = 0

    def release(self) -> None:
        """Give the own text's memory back; the request must not be used again."""
        self._shared.take_back(self._own)

    def memory_bytes(self) -> int:
        """Return the bytes held for the request's own text."""
        heap = int(self._query[at.SCRATCH_ROWS]) * at.SCRATCH_WIDTH * 4
        return self._own.memory_bytes() + heap

    def _relieve(self, short: int, count: int) -> None:
        """Make room where a call with `count` new ids found too little."""
        if short == SHORT_OF_OWN:
            self._own.make_room(count)
        elif short == SHORT_OF_SHARED:
            self._shared.make_room(count)
        elif short == SHORT_OF_OUT:
            message = "suffix: `out` is too short: it takes three parts of `stride` numbers, start + most in each"
            raise SpecdecError(message)
        else:
            self._reserve(2 * int(self._query[at.SCRATCH_ROWS]))

    def _reserve(self, rows: int) -> None:
        """Make scratch memory: a node for each length of a match, and a heap of some rows."""
        depth = int(self._own.head[at.DEPTH])
        self._scratch = np.empty(depth + 1 + rows * at.SCRATCH_WIDTH, np.int32)
        self._query[at.SCRATCH_AT], self._query[at.SCRATCH_ROWS] = self._scratch.ctypes.data, rows
