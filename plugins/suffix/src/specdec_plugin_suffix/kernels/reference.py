"""The definition of `suffix_forest` in plain Python: one node an id, every suffix led on by every id; knows no cache.

Source: SuffixDecoding, arXiv 2411.04975, section 3, and docs/suffix.md.
Where continuations are equally frequent, their order is that of the Arctic library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specdec_core.errors import SpecdecError

if TYPE_CHECKING:
    from specdec_core.draft import IntArray
    from specdec_plugin_suffix.forest import Rules

Drafted = list[tuple[int, int, np.float32]]  # id, index of its parent (-1: the newest id), probability

ONE, ZERO = np.float32(1), np.float32(0)
BYTES_A_NODE, BYTES_AN_ID = 300, 40  # about, of objects in CPython


class _Node:
    """A string of a trie: its last id, how many suffixes begin with it, and the strings one id longer, in order."""

    __slots__ = ("by_token", "count", "followers", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.count = 0
        self.followers: list[_Node] = []
        self.by_token: dict[int, _Node] = {}

    @property
    def sole(self) -> _Node | None:
        """The string one id longer if every suffix goes on to it: the two are then one run of a compressed trie."""
        return self.followers[0] if self.followers and self.followers[0].count == self.count else None

    def gain(self, token: int) -> _Node:
        """Count an id after this string; return the string with it.

        It passes those as frequent as it was. If it was the first of them, it also passes those as frequent as it is
        now; else it comes after them. A new one comes last.
        """
        node = self.by_token.get(token)
        if node is None:
            node = self.by_token[token] = _Node(token)
            self.followers.append(node)
        else:
            at = self.followers.index(node)
            was_first = at == 0 or self.followers[at - 1].count > node.count
            del self.followers[at]
            self._insert(node, node.count + was_first)
        node.count += 1
        return node

    def lose(self, token: int) -> _Node:
        """Take back one count of an id after this string: it now comes before those as frequent as it is."""
        node = self.by_token[token]
        self.followers.remove(node)
        node.count -= 1
        if node.count:
            self._insert(node, node.count)
        else:
            del self.by_token[token]
        return node

    def _insert(self, node: _Node, count: int) -> None:
        """Put a node before the first one whose count is at most `count`."""
        at = next((i for i, other in enumerate(self.followers) if other.count <= count), len(self.followers))
        self.followers.insert(at, node)


class _Sequence:
    """One text in a trie: its ids, how many of them are removed, and where its last suffixes end, the longest first."""

    def __init__(self, root: _Node) -> None:
        self.root = root
        self.text: list[int] = []
        self.start = 0
        self.ends: list[_Node] = []

    def append(self, tokens: Sequence[int], depth: int) -> None:
        """Lead each of the last `depth` suffixes on, id by id."""
        for token in tokens:
            self.text.append(token)
            self.ends = [node.gain(token) for node in [*self.ends, self.root][-depth:]]

    def remove(self, count: int, depth: int) -> int:
        """Remove the first suffixes, at most `count`; return how many."""
        end = min(self.start + count, len(self.text))
        for first in range(self.start, end):
            node = self.root
            for token in self.text[first : first + depth]:
                node = node.lose(token)
        removed, self.start = end - self.start, end
        self.ends = self.ends[len(self.ends) - min(len(self.ends), len(self.text) - end) :]
        return removed


_Entry = tuple[np.float32, _Node, bool, int]


class Forest:
    """Tries of nested dictionaries; see `specdec_plugin_suffix.forest.Forest`."""

    def __init__(self, depth: int, tokens: int = 0) -> None:
        """Make an empty forest; room means nothing here."""
        self.depth = depth
        self.tokens = 0
        self._roots: dict[int, _Node] = {}
        self._seqs: dict[int, _Sequence] = {}
        self._named = 0

    @property
    def nodes(self) -> int:
        """Nodes of the tries, roots included."""
        return len(self._roots) + sum(1 for root in self._roots for _ in self.walk(root))

    @property
    def used_bytes(self) -> int:
        """Bytes in use, roughly."""
        return self.nodes * BYTES_A_NODE + self.tokens * BYTES_AN_ID

    def memory_bytes(self) -> int:
        """Return the bytes in use, roughly."""
        return self.used_bytes

    def plant(self) -> int:
        """Make an empty trie; return its root."""
        self._named += 1
        self._roots[self._named] = _Node(-1)
        return self._named

    def fell(self, root: int) -> None:
        """Drop an empty trie."""
        del self._roots[root]

    def begin(self, root: int) -> int:
        """Begin an empty sequence in a trie; return its number."""
        self._named += 1
        self._seqs[self._named] = _Sequence(self._roots[root])
        return self._named

    def append(self, seq: int, tokens: IntArray) -> None:
        """Append ids [n] int32 to a sequence."""
        self._seqs[seq].append(tokens.tolist(), self.depth)
        self.tokens += len(tokens)

    def remove(self, seq: int, count: int) -> int:
        """Remove the first ids of a sequence, at most `count`; return how many stay."""
        sequence = self._seqs[seq]
        self.tokens -= sequence.remove(count, self.depth)
        return len(sequence.text) - sequence.start

    def end(self, seq: int) -> None:
        """Forget an empty sequence."""
        del self._seqs[seq]

    def span(self, seq: int) -> tuple[int, int]:
        """Return how many ids of a sequence have been removed, and how many were ever appended."""
        return self._seqs[seq].start, len(self._seqs[seq].text)

    def text(self, seq: int) -> IntArray:
        """Return a copy of what is left of a sequence, [n] int32."""
        return np.asarray(self._seqs[seq].text[self._seqs[seq].start :], np.int32)

    def request(self, prompt: IntArray, rules: Rules) -> Request:
        """Return a request with a prompt, attached to nothing."""
        return Request(self, prompt, rules)

    def root(self, root: int) -> _Node:
        """Return the root of a trie."""
        return self._roots[root]

    def walk(self, root: int) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
        """Yield each string of a trie, its count, and the ids that follow it, in order."""
        todo: list[tuple[tuple[int, ...], _Node]] = [((node.token,), node) for node in self._roots[root].followers]
        while todo:
            string, node = todo.pop()
            yield string, node.count, tuple(other.token for other in node.followers)
            todo += [((*string, other.token), other) for other in node.followers]


class Request:
    """One request; see `specdec_plugin_suffix.forest.Request`."""

    def __init__(self, shared: Forest, prompt: IntArray, rules: Rules) -> None:
        """Make a trie of the prompt."""
        self._shared, self._rules = shared, rules
        self._root: _Node | None = None
        self._seq = 0
        self._own = _Sequence(_Node(-1))
        self._own.append(prompt.tolist(), shared.depth)
        self.score, self.matched = 0.0, 0

    def extend(self, tokens: IntArray, first: int, first_shared: int) -> None:
        """Append tokens[first:] to the own text and tokens[first_shared:] to the shared one."""
        if self._seq and first_shared < len(tokens):
            self._shared.append(self._seq, tokens[first_shared:])
        self._own.append(tokens[first:].tolist(), self._shared.depth)

    def draft(self, most: int, out: IntArray, start: int, stride: int) -> int:
        """Draft at most `most` ids; return how many."""
        if start < 0 or start + max(most, 0) > stride or 3 * stride > len(out):
            message = "suffix: `out` is too short: it takes three parts of `stride` numbers, start + most in each"
            raise SpecdecError(message)
        score, self.matched, drafted = self._best(self._own.root, most)
        if self._root is not None:
            other = self._best(self._root, most)
            if other[0] > score:
                score, self.matched, drafted = other
        self.score = float(score)
        for i, (token, parent, probability) in enumerate(drafted):
            out[start + i], out[start + stride + i] = token, parent
            out[start + 2 * stride + i] = probability.view(np.int32)
        return len(drafted)

    def step(
        self, tokens: IntArray, first: int, first_shared: int, most: int, out: IntArray, start: int, stride: int
    ) -> int:
        """Extend and draft in one call."""
        self.extend(tokens, first, first_shared)
        return self.draft(most, out, start, stride)

    def attach(self, root: int, seq: int) -> None:
        """Look into a shared trie too, and append to a sequence in it (0: to none)."""
        self._root, self._seq = self._shared.root(root), seq

    def detach(self) -> None:
        """Forget the shared sequence, which has been removed; the trie that it was in is still looked into."""
        self._seq = 0

    def release(self) -> None:
        """Nothing to give back."""

    def memory_bytes(self) -> int:
        """Return the bytes held for the request's own text, roughly."""
        return len(self._own.text) * BYTES_AN_ID

    def _best(self, root: _Node, most: int) -> tuple[np.float32, int, Drafted]:
        """Return the best score, the length of its match (the longest of equals) and the draft."""
        rules, context = self._rules, self._own.text[-self._shared.depth :]
        make = _tree if rules.tree else _path
        score, matched, draft = ZERO, 0, Drafted()
        for m in range(1, len(context) + rules.match_whole):
            place: _Node | None = root
            for token in context[len(context) - m :]:
                place = place.by_token.get(token) if place is not None else None
            if place is None:
                break
            factor, offset = np.float32(rules.max_factor), np.float32(rules.offset)
            cap = max(0, min(most, int(float(np.float32(m) * factor + offset) + 1e-6)))
            found = make(place, cap, np.float32(rules.min_probability), rules.vocabulary)
            total = ZERO
            for _, _, probability in found:
                total += probability
            if found and total >= score:
                score, matched, draft = total, m, found
        return score, matched, draft


def _path(node: _Node, most: int, least: np.float32, vocabulary: int) -> Drafted:
    """Follow the first string at every fork."""
    drafted, probability = Drafted(), ONE
    while len(drafted) < most and probability >= least and node.followers:
        after = node.followers[0]
        probability = probability * (np.float32(after.count) / np.float32(node.count))
        if probability < least or not 0 <= after.token < vocabulary:
            break
        drafted.append((after.token, len(drafted) - 1, probability))
        node = after
    return drafted


def _tree(node: _Node, most: int, least: np.float32, vocabulary: int) -> Drafted:
    """Take the likeliest strings first.

    An entry of the heap is a string that has been drafted and goes on, or one that may be drafted. Within a run of a
    compressed trie, the string after a drafted one is drafted as soon as that comes up; at a fork, all are added.
    """
    drafted, heap = Drafted(), list[_Entry]()
    _push(heap, (ONE, node, True, -1))
    while len(drafted) < most and heap:
        probability, node, done, parent = _pop(heap)
        if done and node.sole is not None:
            node, done = node.sole, False
        if not done:
            if 0 <= node.token < vocabulary:
                drafted.append((node.token, parent, probability))
                _push(heap, (probability, node, True, len(drafted) - 1))
            continue
        for after in node.followers:
            branch = probability * np.float32(after.count) / np.float32(node.count)
            if branch >= least:
                _push(heap, (branch, after, False, parent))
    return drafted


def _push(heap: list[_Entry], entry: _Entry) -> None:
    """Add an entry to a binary heap."""
    heap.append(entry)
    _rise(heap, len(heap) - 1, entry)


def _pop(heap: list[_Entry]) -> _Entry:
    """Take the top as the standard library of C++ does, since that settles which of equals comes next.

    The likelier child rises, the right one of equals, down to the end; from that hole the last entry rises.
    """
    top, last = heap[0], heap.pop()
    at, child = 0, 1
    while child < len(heap):
        if child + 1 < len(heap) and not heap[child + 1][0] < heap[child][0]:
            child += 1
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    if heap:
        _rise(heap, at, last)
    return top


def _rise(heap: list[_Entry], at: int, entry: _Entry) -> None:
    """Put an entry in a hole, or above it, past those that are less likely."""
    while at > 0 and heap[(at - 1) // 2][0] < entry[0]:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = entry
