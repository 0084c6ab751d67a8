"""The compiled functions that Python calls: room, a request's step, removal; appending checks for room first.

Explicit signatures: they are compiled, or loaded from numba's cache, when this module is imported. Addresses are int64.
"""

from __future__ import annotations

from numba import boolean, int32, int64, types, void

from specdec_core.draft import IntArray
from specdec_plugin_suffix.kernels.drafts import speculate
from specdec_plugin_suffix.kernels.layout import (
    BLOCK,
    BLOCK_COUNT,
    BLOCK_FREE,
    BLOCK_TOP,
    BOTTOM,
    COUNT,
    DEPTH,
    ENDLESS,
    FIRST,
    LEAST_BLOCK,
    LENGTH,
    MANY,
    NODE_COUNT,
    NODE_FREE,
    NODE_ROWS,
    NODE_TOP,
    NODE_WIDTH,
    NODES_AT,
    ONLY,
    OWN,
    PARENT,
    ROOT,
    SEQ_COUNT,
    SEQ_FREE,
    SEQ_ROWS,
    SEQ_TOP,
    SEQ_WIDTH,
    SEQS_AT,
    SEQUENCE,
    SHARED,
    TABLE_AT,
    TABLE_COUNT,
    TABLE_SLOTS,
    TEXT_ROWS,
    TEXT_WIDTH,
    TIE_COUNT,
    TIE_FREE,
    TIE_TOP,
    TIE_WIDTH,
    TOKENS,
)
from specdec_plugin_suffix.kernels.memory import get, njit, peek, poke, put
from specdec_plugin_suffix.kernels.siblings import enter, new_node
from specdec_plugin_suffix.kernels.tries import append, remove

SHORT_OF_OWN, SHORT_OF_SHARED, SHORT_OF_SCRATCH, SHORT_OF_OUT = -1, -2, -3, -4
_IDS = types.Array(int32, 1, "C", readonly=True)


@njit(types.UniTuple(int64, 3)(int64, int64), nogil=True)
def needs(head: int, count: int) -> tuple[int, int, int]:
    """Return the rows of nodes, the rows of text and the entries of the table that `count` more ids may need.

    A suffix that moves makes two nodes at most, and one new child, which may be one too many for a list.
    """
    moves = count + peek(head, DEPTH)
    nodes = 1 + peek(head, NODE_COUNT) + 2 * moves
    entries = min(nodes, peek(head, TABLE_COUNT) + (MANY + 1) * moves)
    size = peek(head, BLOCK)
    if size == ENDLESS:
        length = get(peek(head, SEQS_AT), ONLY + LENGTH) if peek(head, BLOCK_COUNT) != 0 else 0
        return nodes, 3 + length + count, entries
    blocks = peek(head, BLOCK_COUNT) + 2 + count // LEAST_BLOCK
    return nodes, 1 + blocks * (1 + size + peek(head, DEPTH)), entries


@njit(boolean(int64, int64), nogil=True)
def has_room(head: int, count: int) -> bool:
    """Return whether ids can be appended."""
    nodes, text, entries = needs(head, count)
    fits: bool = nodes <= peek(head, NODE_ROWS) and text <= peek(head, TEXT_ROWS)
    return fits and 4 * entries <= 3 * peek(head, TABLE_SLOTS)


@njit(int64(int64, _IDS, int64, int64), nogil=True)
def extend(query: int, tokens: IntArray, first: int, first_shared: int) -> int:
    """Append tokens[first:] to a request's own text and tokens[first_shared:] to the shared one.

    Returns 0, or SHORT_OF_OWN or SHORT_OF_SHARED; then nothing was appended.
    """
    own, shared, seq = peek(query, OWN), peek(query, SHARED), peek(query, SEQUENCE)
    first, first_shared = max(first, 0), max(first_shared, 0)
    count, count_shared = tokens.size - first, tokens.size - first_shared
    if count > 0:
        if not has_room(own, count):
            return SHORT_OF_OWN
        if seq != 0 and count_shared > 0:
            if not has_room(shared, count_shared):
                return SHORT_OF_SHARED
            append(shared, seq, tokens.ctypes.data + 4 * first_shared, count_shared)
        append(own, ONLY, tokens.ctypes.data + 4 * first, count)
    return 0


@njit(int64(int64, int64, int32[::1], int64, int64), nogil=True)
def draft(query: int, most: int, out: IntArray, start: int, stride: int) -> int:
    """Write at most `most` ids to out[start:], their parents and probabilities `stride` and 2 * `stride` further on.

    Returns how many, or SHORT_OF_SCRATCH, or SHORT_OF_OUT where they would meet each other or the end.
    """
    if start < 0 or start + max(most, 0) > stride or 3 * stride > out.size:
        return SHORT_OF_OUT
    n = speculate(query, most, out.ctypes.data + 4 * start, stride)
    return n if n >= 0 else SHORT_OF_SCRATCH


@njit(int64(int64, _IDS, int64, int64, int64, int32[::1], int64, int64), nogil=True)
def step(
    query: int, tokens: IntArray, first: int, first_shared: int, most: int, out: IntArray, start: int, stride: int
) -> int:
    """Extend, then draft; returns what the first of them returns that is short of something, else the number of ids."""
    result: int = extend(query, tokens, first, first_shared)
    if result == 0:
        result = draft(query, most, out, start, stride)
    return result


@njit(int64(int64, int64, int64), nogil=True)
def remove_first(head: int, seq: int, count: int) -> int:
    """Remove the first suffixes of a sequence, at most `count`; return how many stay."""
    return remove(head, seq, count)


@njit(void(int64), nogil=True)
def clear(head: int) -> None:
    """Make a forest empty; its arrays, their sizes and its settings stay. Row 0 of each array means "none"."""
    for slot in (NODE_FREE, NODE_COUNT, TIE_FREE, TIE_COUNT, BLOCK_FREE, BLOCK_COUNT, SEQ_FREE, SEQ_COUNT, TOKENS):
        poke(head, slot, 0)
    poke(head, NODE_TOP, NODE_WIDTH)
    poke(head, TIE_TOP, TIE_WIDTH)
    poke(head, BLOCK_TOP, TEXT_WIDTH)
    poke(head, SEQ_TOP, SEQ_WIDTH)
    if peek(head, TABLE_COUNT) != 0:
        for slot in range(peek(head, TABLE_SLOTS)):
            put(peek(head, TABLE_AT), slot, 0)
        poke(head, TABLE_COUNT, 0)


@njit(int64(int64), nogil=True)
def new_root(head: int) -> int:
    """Return a node that is the root of an empty trie."""
    nodes = peek(head, NODES_AT)
    root = new_node(head, nodes)
    for column in (PARENT, BOTTOM, COUNT, FIRST):
        put(nodes, root + column, 0)
    return root


@njit(int64(int64, int64), nogil=True)
def new_seq(head: int, root: int) -> int:
    """Return an empty sequence in a trie, 0 if there is no row for one."""
    seqs, seq = peek(head, SEQS_AT), peek(head, SEQ_FREE)
    if seq != 0:
        poke(head, SEQ_FREE, get(seqs, seq + ROOT))
    else:
        seq = peek(head, SEQ_TOP)
        if seq >= SEQ_WIDTH * peek(head, SEQ_ROWS):
            return 0
        poke(head, SEQ_TOP, seq + SEQ_WIDTH)
    poke(head, SEQ_COUNT, peek(head, SEQ_COUNT) + 1)
    for column in range(SEQ_WIDTH):
        put(seqs, seq + column, 0)
    put(seqs, seq + ROOT, root)
    return seq


@njit(void(int64, int64), nogil=True)
def free_seq(head: int, seq: int) -> None:
    """Give the row of an empty sequence back."""
    put(peek(head, SEQS_AT), seq + ROOT, peek(head, SEQ_FREE))
    poke(head, SEQ_FREE, seq)
    poke(head, SEQ_COUNT, peek(head, SEQ_COUNT) - 1)


@njit(void(int64, int64, _IDS), nogil=True)
def append_ids(head: int, seq: int, tokens: IntArray) -> None:
    """Append ids to a sequence (0: to a new one in a new trie); there must be room."""
    if seq == 0:
        seq = new_seq(head, new_root(head))
    append(head, seq, tokens.ctypes.data, tokens.size)


@njit(void(int64, int64, int64), nogil=True)
def refill(head: int, old: int, slots: int) -> None:
    """Enter all that is in an old table, which had some slots, in a new and empty one."""
    poke(head, TABLE_COUNT, 0)
    nodes = peek(head, NODES_AT)
    for slot in range(slots):
        if get(old, slot) != 0:
            enter(head, nodes, get(old, slot))
