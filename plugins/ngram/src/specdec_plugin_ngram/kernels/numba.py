"""The incremental index of `ngram`: an online suffix automaton over one request's ids; knows arrays, no requests.

The automaton (Blumer et al. 1985) groups the substrings of a text by the set of their end positions. After each id, the
suffix link of the newest state leads to the longest suffix that occurred before, which is what prompt lookup asks for,
and appending costs O(1) amortised whatever the range of n. There are at most 2n - 1 states, and at most n transitions
more than states.

What keeps it small: each state has one transition on the id that followed its first occurrence. Its token is in the
text, so only the target is kept, in the state. The others, n at most, lie in one array, threaded by state, and are
found through one open-addressing table.

Arrays of one request; an "end" is the position after a substring's last id, which is where a draft begins:

states  [2n, 6] int32      LINK, LENGTH, FIRST and LATEST end, NEXT (target on tokens[FIRST]), HEAD (newest edge or -1)
edges   [n, 4] int32       STATE, TOKEN, TARGET, OLDER (edge of the same state or -1)
table   [power of two > n] int32   1 + index into edges, 0 = free
meta    [META_SIZE] int64  the counters and settings below

Loops spell out array accesses instead of calling small functions: numba counts references around each call that gets
an array, which costs more than the access.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import int32, int64, types, void

from specdec_nn.ops.cpu.jit import Jit

njit = Jit("specdec_plugin_ngram.kernels").njit

IntArray = npt.NDArray[np.int32]
Meta = npt.NDArray[np.int64]

LINK, LENGTH, FIRST, LATEST, NEXT, HEAD, STATE_COLUMNS = range(7)
STATE, TOKEN, TARGET, OLDER, EDGE_COLUMNS = range(5)

# Slots of meta: ids indexed, states and edges in use, the newest state; the match after the newest id (its state, its
# length capped at HIGH, its latest end before the newest one); elementary steps done so far; then the settings.
SIZE, STATES, EDGES, NEWEST, MATCH, MATCHED, BEFORE, STEPS, LOW, HIGH, TAKE_LATEST, VOCAB, META_SIZE = range(13)

ROOT, NONE = 0, -1

_IDS = types.Array(int32, 1, "C", readonly=True)
_ROWS = int32[:, ::1]
_FLAT = int32[::1]
_META = int64[::1]


@njit(int64(int64, int64))
def _mixed(state: int, token: int) -> int:
    """Return 31 well-mixed bits of (state, token); both are small and consecutive more often than not."""
    key = (np.uint64(np.uint32(state)) << np.uint64(32)) | np.uint64(np.uint32(token))
    key = (key ^ (key >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    bits: int = np.int64(key >> np.uint64(33))
    return bits


@njit(int64(_ROWS, _FLAT, _META, int64, int64))
def _find(edges: IntArray, table: IntArray, meta: Meta, state: int, token: int) -> int:
    """Return the index of the edge of (state, token), or -1."""
    mask = table.size - 1
    slot = _mixed(state, token) & mask
    steps = 1
    edge: int = table[slot] - 1
    while edge >= 0 and not (edges[edge, STATE] == state and edges[edge, TOKEN] == token):
        slot = (slot + 1) & mask
        steps += 1
        edge = table[slot] - 1
    meta[STEPS] += steps
    return edge


@njit(void(_ROWS, _ROWS, _FLAT, _META, int64, int64, int64))
def _add(states: IntArray, edges: IntArray, table: IntArray, meta: Meta, state: int, token: int, target: int) -> None:
    """Store an edge state -token-> target that is not there yet."""
    edge = meta[EDGES]
    edges[edge, STATE], edges[edge, TOKEN], edges[edge, TARGET] = state, token, target
    edges[edge, OLDER] = states[state, HEAD]
    states[state, HEAD] = edge
    meta[EDGES] = edge + 1
    mask = table.size - 1
    slot = _mixed(state, token) & mask
    while table[slot] != 0:
        slot = (slot + 1) & mask
    table[slot] = edge + 1


@njit(int64(_ROWS, _ROWS, _FLAT, _META, int64, int64))
def _split(states: IntArray, edges: IntArray, table: IntArray, meta: Meta, state: int, length: int) -> int:
    """Split off the substrings of `state` up to `length`, which now end at the newest id too; return the new state."""
    new: int = meta[STATES]
    meta[STATES] = new + 1
    states[new] = states[state]
    states[new, LENGTH], states[new, HEAD] = length, NONE
    states[state, LINK] = new
    edge = states[state, HEAD]
    while edge >= 0:
        meta[STEPS] += 1
        _add(states, edges, table, meta, new, edges[edge, TOKEN], edges[edge, TARGET])
        edge = edges[edge, OLDER]
    return new


@njit(void(_ROWS, _ROWS, _FLAT, _META, _IDS, int64, int64, int64, int64))
def _redirect(
    states: IntArray,
    edges: IntArray,
    table: IntArray,
    meta: Meta,
    tokens: IntArray,
    state: int,
    token: int,
    old: int,
    new: int,
) -> None:
    """Turn the transitions on `token` that lead from `state` and its links to `old` towards `new`."""
    while state != NONE:
        meta[STEPS] += 1
        if tokens[states[state, FIRST]] == token:
            if states[state, NEXT] != old:
                return
            states[state, NEXT] = new
        else:
            edge = _find(edges, table, meta, state, token)
            if edge < 0 or edges[edge, TARGET] != old:
                return
            edges[edge, TARGET] = new
        state = states[state, LINK]


@njit(int64(_ROWS, _ROWS, _FLAT, _META, _IDS, int64, int64))
def _place(
    states: IntArray, edges: IntArray, table: IntArray, meta: Meta, tokens: IntArray, new: int, token: int
) -> int:
    """Add the missing transitions on `token` to `new`; return the state of the longest suffix that occurred before."""
    state = states[meta[NEWEST], LINK]
    target: int = np.int64(NONE)  # as wide as a state's number may be
    while state != NONE:
        meta[STEPS] += 1
        if tokens[states[state, FIRST]] == token:
            target = states[state, NEXT]
            break
        edge = _find(edges, table, meta, state, token)
        if edge >= 0:
            target = edges[edge, TARGET]
            break
        _add(states, edges, table, meta, state, token, new)
        state = states[state, LINK]
    if state == NONE:
        return ROOT
    length = states[state, LENGTH] + 1
    if length == states[target, LENGTH]:
        return target
    part: int = _split(states, edges, table, meta, target, length)
    _redirect(states, edges, table, meta, tokens, state, token, target, part)
    return part


@njit(void(_ROWS, _ROWS, _FLAT, _META, _IDS, int64))
def _append(states: IntArray, edges: IntArray, table: IntArray, meta: Meta, tokens: IntArray, at: int) -> None:
    """Append the id at position `at`: make the state of the whole text and find its suffix link."""
    new = meta[STATES]
    meta[STATES] = new + 1
    states[new, LENGTH], states[new, FIRST], states[new, LATEST] = at + 1, at + 1, at + 1
    states[new, NEXT], states[new, HEAD] = NONE, NONE
    states[meta[NEWEST], NEXT] = new
    states[new, LINK] = _place(states, edges, table, meta, tokens, new, tokens[at])
    meta[NEWEST], meta[SIZE] = new, at + 1


@njit(void(_ROWS, _ROWS, _FLAT, _META, _IDS, int64))
def _follow(states: IntArray, edges: IntArray, table: IntArray, meta: Meta, tokens: IntArray, at: int) -> None:
    """Move MATCH to the state of the longest suffix, of at most HIGH ids, that occurred before."""
    high, token = meta[HIGH], tokens[at]
    link = states[meta[NEWEST], LINK]
    if states[link, LENGTH] <= high:
        meta[MATCH], meta[MATCHED] = link, states[link, LENGTH]
        return
    # The longest repeated suffix grows by one id at most, so before this id MATCH held HIGH ids. Its transition leads
    # to the suffix of HIGH + 1 ids; that of HIGH ids is in the same state or one link away. A MATCH that was split
    # for this id has kept all of its transitions.
    state = meta[MATCH]
    if tokens[states[state, FIRST]] == token:
        state = states[state, NEXT]
    else:
        state = edges[_find(edges, table, meta, state, token), TARGET]
    link = states[state, LINK]
    meta[MATCH], meta[MATCHED] = link if states[link, LENGTH] >= high else state, high


@njit(void(_ROWS, _META))
def _touch(states: IntArray, meta: Meta) -> None:
    """Keep the latest end of MATCH, then note the newest end at each state with a suffix of LOW to MATCHED ids."""
    state, low, end, steps = meta[MATCH], meta[LOW], meta[SIZE], 0
    meta[BEFORE] = states[state, LATEST]
    while states[state, LENGTH] >= low:  # LOW >= 1, so this ends at the root
        steps += 1
        states[state, LATEST] = end
        state = states[state, LINK]
    meta[STEPS] += steps


@njit(void(_ROWS, _ROWS, _FLAT, _META, _IDS))
def extend(states: IntArray, edges: IntArray, table: IntArray, meta: Meta, tokens: IntArray) -> None:
    """Take in the ids of `tokens` [n] int32 that are not indexed yet; the arrays must have room for n ids."""
    for at in range(meta[SIZE], tokens.size):
        _append(states, edges, table, meta, tokens, at)
        _follow(states, edges, table, meta, tokens, at)
        if meta[TAKE_LATEST]:
            _touch(states, meta)


@njit(int64(_ROWS, _ROWS, _FLAT, _META, _IDS, int64, _FLAT, int64))
def propose(
    states: IntArray, edges: IntArray, table: IntArray, meta: Meta, tokens: IntArray, k: int, out: IntArray, start: int
) -> int:
    """Take in new ids, then write at most k draft ids to `out` from index `start`; return how many.

    The draft ends with the context, and before an id outside 0..VOCAB-1, which no embedding has (placeholders).
    """
    extend(states, edges, table, meta, tokens)
    if meta[MATCHED] < meta[LOW]:
        return 0
    source = meta[BEFORE] if meta[TAKE_LATEST] else states[meta[MATCH], FIRST]
    count: int = min(k, tokens.size - source)
    for i in range(count):
        token = tokens[source + i]
        if token < 0 or token >= meta[VOCAB]:
            return i
        out[start + i] = token
    return count


@njit(void(_ROWS, _FLAT, int64))
def refill(edges: IntArray, table: IntArray, count: int) -> None:
    """Enter the first `count` edges into an empty table."""
    mask = table.size - 1
    for edge in range(count):
        slot = _mixed(edges[edge, STATE], edges[edge, TOKEN]) & mask
        while table[slot] != 0:
            slot = (slot + 1) & mask
        table[slot] = edge + 1
