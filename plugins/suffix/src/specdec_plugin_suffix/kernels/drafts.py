"""Drafts from the tries of a request (arXiv 2411.04975, section 3): what followed its last ids; changes none.

All sums and products are of float32, in the order of the Arctic library, since its choice between two matches can hang
on the last bit. The heap of tree drafts is the binary heap of C++'s standard library for the same reason: the order in
which entries of equal probability leave it decides the order of drafts, and which of them fall to the limit.
"""

from __future__ import annotations

import numpy as np

from specdec_plugin_suffix.kernels.layout import (
    BLOCK,
    BOTTOM,
    COUNT,
    DEPTH,
    END,
    END_OF_TEXT,
    FACTOR,
    FIRST,
    LAST_BLOCK,
    LEAST,
    LENGTH,
    MATCHED,
    NEXT,
    NODES_AT,
    OFFSET,
    ONLY,
    OWN,
    PARENT_AT,
    PLACE_DEPTH,
    PLACE_NODE,
    PROBABILITY,
    ROOT,
    SCORE,
    SCRATCH_AT,
    SCRATCH_ROWS,
    SCRATCH_WIDTH,
    SEQS_AT,
    SEQUENCE,
    SHARED,
    START,
    SUFFIX,
    TEXT_AT,
    TEXT_WIDTH,
    TREE,
    TRIE,
    VOCABULARY,
    WHOLE,
)
from specdec_plugin_suffix.kernels.memory import compiled, get, get_float, peek, poke, put, put_float
from specdec_plugin_suffix.kernels.siblings import find
from specdec_plugin_suffix.kernels.tries import position

ONE, ZERO = np.float32(1), np.float32(0)


@compiled
def match(head: int, root: int, text: int, at: int, count: int) -> int:
    """Return the node in whose run the `count` ids at `at` of `text` end, read from a root; 0 if they are not there."""
    nodes, own = peek(head, NODES_AT), peek(head, TEXT_AT)
    node, depth = root, 0
    while depth < count:
        node = find(head, nodes, node, get(text, at + TEXT_WIDTH * depth))
        if node == 0:
            return 0
        stop, suffix = min(count, get(nodes, node + BOTTOM)), get(nodes, node + SUFFIX)
        depth += 1
        while depth < stop:
            if get(own, suffix + TEXT_WIDTH * depth) != get(text, at + TEXT_WIDTH * depth):
                return 0
            depth += 1
    return node


@compiled
def places(query: int, head: int, seq: int, root: int, nodes_of: int) -> int:
    """Write to nodes_of[m] the node where the last m ids of the request are found, for m from 1 on; return the last m.

    The last ids of a sequence that grows with the request (`seq`, if not 0) end where its suffixes do. If nothing else
    reaches such a node, then nothing follows there, nor at any longer match. What is longer than the sequence is read
    from the root.
    """
    nodes, text, seqs, size = peek(head, NODES_AT), peek(head, TEXT_AT), peek(head, SEQS_AT), peek(head, BLOCK)
    own = peek(query, OWN)
    length = get(peek(own, SEQS_AT), ONLY + LENGTH)
    longest = min(peek(own, DEPTH), length) - 1 + peek(query, WHOLE)
    m, ending = 1, 0
    if seq != 0:
        ending = min(longest, get(seqs, seq + LENGTH) - get(seqs, seq + START))
        block, index = get(seqs, seq + LAST_BLOCK), ((get(seqs, seq + LENGTH) - 1) & (size - 1)) + 1
        while m <= ending:
            node = get(text, position(head, text, block, index - m) + END)
            if get(nodes, node + COUNT) == 1:
                return m - 1
            put(nodes_of, m, node)
            m += 1
    own_text = peek(own, TEXT_AT)
    end = TEXT_WIDTH * (2 + length)  # of the only block of the request's own text
    while m <= longest:
        node = match(head, root, own_text, end - TEXT_WIDTH * m, m)
        if node == 0:
            break
        put(nodes_of, m, node)
        m += 1
    return m - 1


@compiled
def path(
    head: int, node: int, depth: int, most: int, least: float, vocabulary: int, out: int, stride: int
) -> tuple[float, int]:
    """Follow the first child at every fork; return the sum of probabilities and the number of ids.

    With `out`, an address, ids, parents and probabilities are written there, each `stride` numbers after the other;
    the draft then ends before an id that is not in the vocabulary.
    """
    nodes, text = peek(head, NODES_AT), peek(head, TEXT_AT)
    probability, score, n = ONE, ZERO, 0
    bottom, count = get(nodes, node + BOTTOM), get(nodes, node + COUNT)
    at = get(nodes, node + SUFFIX) + TEXT_WIDTH * depth
    while n < most and probability >= least:
        if depth == bottom:
            node = abs(get(nodes, node + FIRST))
            if node == 0:
                break
            here = get(nodes, node + COUNT)
            probability *= np.float32(here) / np.float32(count)
            if not probability >= least:
                break
            count, bottom = here, get(nodes, node + BOTTOM)
            at = get(nodes, node + SUFFIX) + TEXT_WIDTH * depth
        token = get(text, at)
        if not 0 <= token < vocabulary:  # or the end of the text
            break
        if out != 0:
            put(out, n, token)
            put(out, n + stride, n - 1)
            put_float(out, n + 2 * stride, probability)
        score += probability
        n += 1
        depth += 1
        at += TEXT_WIDTH
    return score, n


@compiled
def push(heap: int, size: int, probability: float, node: int, depth: int, parent: int) -> None:
    """Add an entry to a heap of some size."""
    child = size
    while child > 0:
        above = (child - 1) >> 1
        if not get_float(heap, SCRATCH_WIDTH * above + PROBABILITY) < probability:
            break
        copy(heap, above, child)
        child = above
    put_float(heap, SCRATCH_WIDTH * child + PROBABILITY, probability)
    put(heap, SCRATCH_WIDTH * child + PLACE_NODE, node)
    put(heap, SCRATCH_WIDTH * child + PLACE_DEPTH, depth)
    put(heap, SCRATCH_WIDTH * child + PARENT_AT, parent)


@compiled
def copy(heap: int, source: int, target: int) -> None:
    """Copy an entry."""
    for column in range(SCRATCH_WIDTH):
        put(heap, SCRATCH_WIDTH * target + column, get(heap, SCRATCH_WIDTH * source + column))


@compiled
def close(heap: int, size: int) -> None:
    """Fill the top of a heap, which is free: the likelier children rise, and the last entry rises from the hole."""
    last = SCRATCH_WIDTH * (size - 1)
    probability = get_float(heap, last + PROBABILITY)
    node, depth, parent = get(heap, last + PLACE_NODE), get(heap, last + PLACE_DEPTH), get(heap, last + PARENT_AT)
    hole, child = 0, 1
    while child < size - 1:
        right = SCRATCH_WIDTH * (child + 1) + PROBABILITY
        if child + 1 < size - 1 and not get_float(heap, right) < get_float(heap, SCRATCH_WIDTH * child + PROBABILITY):
            child += 1
        copy(heap, child, hole)
        hole, child = child, 2 * child + 1
    push(heap, hole, probability, node, depth, parent)


@compiled
def tree(
    head: int, node: int, depth: int, most: int, least: float, vocabulary: int, out: int, stride: int,
    heap: int, rows: int,
) -> tuple[float, int]:  # fmt: skip
    """Take the likeliest places first; return the sum of probabilities and the number of ids, -1 if rows are short."""
    nodes, text = peek(head, NODES_AT), peek(head, TEXT_AT)
    score, n, size = ZERO, 0, 1
    push(heap, 0, ONE, node, depth, -1)
    while n < most and size > 0:
        probability = get_float(heap, PROBABILITY)
        node, depth, parent = get(heap, PLACE_NODE), get(heap, PLACE_DEPTH), get(heap, PARENT_AT)
        if size > 1:
            close(heap, size)
        size -= 1
        count, token = get(nodes, node + COUNT), END_OF_TEXT
        if depth < get(nodes, node + BOTTOM):
            token = get(text, get(nodes, node + SUFFIX) + TEXT_WIDTH * depth)
        if token != END_OF_TEXT:
            if not 0 <= token < vocabulary:
                continue
            if out != 0:
                put(out, n, token)
                put(out, n + stride, parent)
                put_float(out, n + 2 * stride, probability)
            score += probability
            push(heap, size, probability, node, depth + 1, n)
            size, n = size + 1, n + 1
            continue
        child = abs(get(nodes, node + FIRST))
        while child != 0:
            branch = probability * np.float32(get(nodes, child + COUNT)) / np.float32(count)
            if branch < least:
                break
            if size >= rows - 1:
                return score, -1
            push(heap, size, branch, child, depth, parent)
            size += 1
            child = get(nodes, child + NEXT)
    return score, n


@compiled
def draft(
    query: int, head: int, node: int, m: int, most: int, out: int, stride: int
) -> tuple[float, int]:  # fmt: skip
    """Make the draft from one place."""
    least, vocabulary = get_float(query, 2 * LEAST), peek(query, VOCABULARY)
    if peek(query, TREE) == 0:
        return path(head, node, m, most, least, vocabulary, out, stride)
    heap = peek(query, SCRATCH_AT) + 4 * peek(head, DEPTH) + 4
    return tree(head, node, m, most, least, vocabulary, out, stride, heap, peek(query, SCRATCH_ROWS))


@compiled
def best(query: int, head: int, seq: int, root: int, most: int) -> tuple[float, int, int, int]:
    """Return the best score, the length of its match (the longest of equals), the node, and a limit: -1 = no room."""
    scratch, depth = peek(query, SCRATCH_AT), peek(head, DEPTH)
    factor, offset = get_float(query, 2 * FACTOR), get_float(query, 2 * OFFSET)
    score, matched, found, limit = ZERO, 0, 0, 0
    for m in range(places(query, head, seq, root, scratch), 0, -1):
        cap = min(most, np.int64(np.float64(np.float32(m) * factor + offset) + 1e-6))
        if np.float32(min(cap, depth - m)) <= score:  # no probability is above 1
            continue
        node = get(scratch, m)
        here, n = draft(query, head, node, m, cap, 0, 0)
        if n < 0:
            return score, matched, found, -1
        if here > score:
            score, matched, found, limit = here, m, node, cap
    return score, matched, found, limit


@compiled
def speculate(query: int, most: int, out: int, stride: int) -> int:
    """Write the better of the drafts of both tries, the request's own if they are as good; -1 if scratch is too small.

    Returns the number of ids. SCORE and MATCHED of the query are set.
    """
    head, shared = peek(query, OWN), peek(query, SHARED)
    score, matched, node, limit = best(query, head, ONLY, get(peek(head, SEQS_AT), ONLY + ROOT), most)
    if limit < 0:
        return -1
    if shared != 0:
        other = best(query, shared, peek(query, SEQUENCE), peek(query, TRIE), most)
        if other[3] < 0:
            return -1
        if other[0] > score:
            head = shared
            score, matched, node, limit = other
    n = 0
    if matched > 0:
        score, n = draft(query, head, node, matched, limit, out, stride)
    put_float(query, 2 * SCORE, score)
    poke(query, MATCHED, matched)
    return n
