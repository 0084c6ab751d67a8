"""Growing and shrinking the tries of a forest, suffix by suffix; knows neither requests nor drafts.

Ukkonen's leaf rule, with a limit of depth: a node that only one suffix reaches is a leaf whose run may be as long as
the depth allows. Its text grows when its sequence does, at no cost, and END_OF_TEXT stops whoever compares with it.
Only suffixes that occur elsewhere have to be moved when ids are appended, each from where it ended, over all new ids.

A node ends where a suffix ends, where two continue differently, or at the limit of depth; never else. So it is at most
two nodes a suffix. Suffixes are moved in order of their beginnings: at any one node they then arrive in the order in
which their ids came, which the order of siblings depends on.

Suffixes that end at the same node form a list. SUFFIX of a node is the first of that list, or, if none ends there, any
suffix that passes through. So when a suffix is removed, another one can stand for the run at once.
"""

from __future__ import annotations

from specdec_plugin_suffix.kernels.layout import (
    BLOCK,
    BLOCK_COUNT,
    BLOCK_FREE,
    BLOCK_TOP,
    BOTTOM,
    COUNT,
    DEPTH,
    EARLIER,
    END,
    END_OF_TEXT,
    FIRST,
    FIRST_BLOCK,
    LAST_BLOCK,
    LATER,
    LENGTH,
    NEXT,
    NEXT_BLOCK,
    NODES_AT,
    PARENT,
    PREVIOUS,
    PREVIOUS_BLOCK,
    ROOT,
    SEQS_AT,
    START,
    SUFFIX,
    TEXT_AT,
    TEXT_WIDTH,
    TIE,
    TOKEN,
    TOKENS,
)
from specdec_plugin_suffix.kernels.memory import compiled, get, peek, poke, put
from specdec_plugin_suffix.kernels.siblings import (
    add,
    demote,
    find,
    free_node,
    leave,
    new_node,
    promote,
    replace,
    take_out,
)


@compiled
def new_leaf(head: int, nodes: int, parent: int, token: int, suffix: int) -> int:
    """Add a leaf for a suffix."""
    leaf = new_node(head, nodes)
    put(nodes, leaf + PARENT, parent)
    put(nodes, leaf + TOKEN, token)
    put(nodes, leaf + BOTTOM, peek(head, DEPTH))
    put(nodes, leaf + SUFFIX, suffix)
    put(nodes, leaf + COUNT, 1)
    put(nodes, leaf + FIRST, 0)
    add(head, nodes, parent, leaf)
    return leaf


@compiled
def split(head: int, nodes: int, text: int, node: int, depth: int, suffix: int) -> int:
    """Cut the run of a node at a depth; return the new upper part, which a suffix has reached and the lower not."""
    upper, count = new_node(head, nodes), get(nodes, node + COUNT)
    replace(head, nodes, node, upper)
    put(nodes, upper + BOTTOM, depth)
    put(nodes, upper + SUFFIX, suffix)
    put(nodes, upper + COUNT, count)
    put(nodes, upper + FIRST, node)
    put(nodes, node + PARENT, upper)
    put(nodes, node + TOKEN, get(text, get(nodes, node + SUFFIX) + TEXT_WIDTH * depth))
    put(nodes, node + COUNT, count - 1)
    put(nodes, node + NEXT, 0)
    put(nodes, node + PREVIOUS, node)
    put(nodes, node + TIE, 0)
    return upper


@compiled
def fuse(head: int, nodes: int, node: int) -> None:
    """Join a node with its child if every suffix that reaches the one reaches the other."""
    signed = get(nodes, node + FIRST)
    child = abs(signed)
    if child == 0 or get(nodes, node + PARENT) == 0 or get(nodes, child + COUNT) != get(nodes, node + COUNT):
        return
    if signed < 0:
        leave(head, nodes, child)
    replace(head, nodes, node, child)
    free_node(head, nodes, node)


@compiled
def add_end(nodes: int, text: int, node: int, suffix: int) -> None:
    """Put a suffix at the head of the list of those that end at a node."""
    other = get(nodes, node + SUFFIX)
    if get(text, other + END) == node:
        put(text, other + EARLIER, suffix)
    else:
        other = 0
    put(text, suffix + END, node)
    put(text, suffix + LATER, other)
    put(text, suffix + EARLIER, 0)
    put(nodes, node + SUFFIX, suffix)


@compiled
def drop_end(nodes: int, text: int, suffix: int) -> int:
    """Take a suffix out of the list of its node; return the node."""
    node, later, earlier = get(text, suffix + END), get(text, suffix + LATER), get(text, suffix + EARLIER)
    if earlier != 0:
        put(text, earlier + LATER, later)
    elif later != 0:
        put(nodes, node + SUFFIX, later)
    if later != 0:
        put(text, later + EARLIER, earlier)
    put(text, suffix + END, 0)
    return node


@compiled
def descend(head: int, nodes: int, text: int, node: int, depth: int, suffix: int, end: int) -> None:
    """Lead a suffix from the bottom of a node, at `depth`, down to depth `end`."""
    while depth < end:
        at = suffix + TEXT_WIDTH * depth
        child = find(head, nodes, node, get(text, at))
        if child == 0:
            node = new_leaf(head, nodes, node, get(text, at), suffix)
            break
        put(nodes, child + COUNT, get(nodes, child + COUNT) + 1)
        promote(head, nodes, node, child)
        bottom, other = get(nodes, child + BOTTOM), get(nodes, child + SUFFIX) - suffix
        stop = min(end, bottom)
        depth += 1
        at += TEXT_WIDTH
        while depth < stop and get(text, at) == get(text, at + other):
            depth += 1
            at += TEXT_WIDTH
        node = child
        if depth < bottom:
            if get(text, at + other) == END_OF_TEXT:  # a leaf that is one no longer
                put(nodes, node + BOTTOM, depth)
            else:
                node = split(head, nodes, text, node, depth, suffix)
    add_end(nodes, text, node, suffix)


@compiled
def slide(nodes: int, text: int, node: int, depth: int, suffix: int, end: int) -> int:
    """Move the bottom of a node along its only child's run with the only suffix that ends there; return the new depth.

    The short way of a suffix that repeats a text which nothing else repeats: nothing but the bottom changes. It stops
    before the child's bottom and before the end of its text, and does nothing where something else must be done.
    """
    child = get(nodes, node + FIRST)
    if child <= 0 or get(nodes, child + NEXT) != 0 or get(nodes, child + COUNT) + 1 != get(nodes, node + COUNT):
        return depth
    stop, reached = min(end, get(nodes, child + BOTTOM) - 1), depth
    at, other = suffix + TEXT_WIDTH * depth, get(nodes, child + SUFFIX) - suffix
    while reached < stop and get(text, at) == get(text, at + other):
        at += TEXT_WIDTH
        if get(text, at + other) == END_OF_TEXT:
            at -= TEXT_WIDTH
            break
        reached += 1
    if reached != depth:
        put(nodes, node + BOTTOM, reached)
        put(nodes, child + TOKEN, get(text, at + other))
    return reached


@compiled
def position(head: int, text: int, block: int, index: int) -> int:
    """Return the position of the suffix at an index of a block; a negative one is in the block before."""
    if index < 0:
        block = get(text, block + PREVIOUS_BLOCK)
        index += peek(head, BLOCK)
    return block + TEXT_WIDTH * (1 + index)


@compiled
def new_block(head: int, text: int, seq: int) -> int:
    """Append a block to a sequence."""
    seqs, block = peek(head, SEQS_AT), peek(head, BLOCK_FREE)
    if block != 0:
        poke(head, BLOCK_FREE, get(text, block + NEXT_BLOCK))
    else:
        block = peek(head, BLOCK_TOP)
        poke(head, BLOCK_TOP, block + TEXT_WIDTH * (1 + peek(head, BLOCK) + peek(head, DEPTH)))
    poke(head, BLOCK_COUNT, peek(head, BLOCK_COUNT) + 1)
    last = get(seqs, seq + LAST_BLOCK)
    put(text, block + NEXT_BLOCK, 0)
    put(text, block + PREVIOUS_BLOCK, last)
    if last != 0:
        put(text, last + NEXT_BLOCK, block)
    else:
        put(seqs, seq + FIRST_BLOCK, block)
    put(seqs, seq + LAST_BLOCK, block)
    return block


@compiled
def write(head: int, text: int, seq: int, tokens: int, count: int) -> None:
    """Write ids behind a sequence; the one that means the end of text, which no vocabulary has, becomes -1."""
    seqs, size, depth = peek(head, SEQS_AT), peek(head, BLOCK), peek(head, DEPTH)
    block, previous = get(seqs, seq + LAST_BLOCK), 0
    if block != 0:
        previous = get(text, block + PREVIOUS_BLOCK)
    length = get(seqs, seq + LENGTH)
    index = length & (size - 1)
    for i in range(count):
        token = get(tokens, i)
        if token == END_OF_TEXT:
            token = -1
        if index == 0:
            previous, block = block, new_block(head, text, seq)
        row = block + TEXT_WIDTH * (1 + index)
        put(text, row, token)
        put(text, row + END, 0)
        put(text, row + TEXT_WIDTH, END_OF_TEXT)
        if index < depth and previous != 0:
            row = previous + TEXT_WIDTH * (1 + size + index)
            put(text, row, token)
            if index + 1 < depth:
                put(text, row + TEXT_WIDTH, END_OF_TEXT)
        index += 1
        if index == size:
            index = 0
    put(seqs, seq + LENGTH, length + count)


@compiled
def append(head: int, seq: int, tokens: int, count: int) -> None:
    """Append int32 ids from an address to a sequence; there must be room in all arrays."""
    nodes, text, seqs = peek(head, NODES_AT), peek(head, TEXT_AT), peek(head, SEQS_AT)
    depth, size = peek(head, DEPTH), peek(head, BLOCK)
    old, block = get(seqs, seq + LENGTH), get(seqs, seq + LAST_BLOCK)
    index = ((old - 1) & (size - 1)) + 1
    moving, most = 0, min(depth - 1, old - get(seqs, seq + START))
    while moving < most:
        suffix = position(head, text, block, index - moving - 1)
        if get(nodes, get(text, suffix + END) + COUNT) == 1:
            break
        moving += 1
    write(head, text, seq, tokens, count)
    for m in range(moving, 0, -1):
        suffix = position(head, text, block, index - m)
        node, end = get(text, suffix + END), min(depth, m + count)
        reached = slide(nodes, text, node, m, suffix, end)
        if reached < end:
            drop_end(nodes, text, suffix)
            descend(head, nodes, text, node, reached, suffix, end)
            fuse(head, nodes, node)
    root = get(seqs, seq + ROOT)
    if old == 0:
        block, index = get(seqs, seq + FIRST_BLOCK), 0
    for left in range(count, 0, -1):
        if index == size:
            block, index = get(text, block + NEXT_BLOCK), 0
        descend(head, nodes, text, root, 0, block + TEXT_WIDTH * (1 + index), min(depth, left))
        index += 1
    poke(head, TOKENS, peek(head, TOKENS) + count)


@compiled
def remove_suffix(head: int, nodes: int, text: int, suffix: int) -> None:
    """Remove a suffix from its trie: every node on its way loses one, bottom up."""
    node = drop_end(nodes, text, suffix)
    parent = get(nodes, node + PARENT)
    while parent != 0:
        count = get(nodes, node + COUNT) - 1
        put(nodes, node + COUNT, count)
        if count == 0:
            take_out(head, nodes, parent, node)
            free_node(head, nodes, node)
        else:
            demote(head, nodes, parent, node)
            child = abs(get(nodes, node + FIRST))
            if get(nodes, node + SUFFIX) == suffix:
                put(nodes, node + SUFFIX, get(nodes, child + SUFFIX))
            if child != 0:
                fuse(head, nodes, node)
            elif count == 1:
                put(nodes, node + BOTTOM, peek(head, DEPTH))
        node = parent
        parent = get(nodes, node + PARENT)


@compiled
def remove(head: int, seq: int, count: int) -> int:
    """Remove the first suffixes of a sequence, at most `count`, and empty blocks; return how many suffixes stay."""
    nodes, text, seqs = peek(head, NODES_AT), peek(head, TEXT_AT), peek(head, SEQS_AT)
    size, length, start = peek(head, BLOCK), get(seqs, seq + LENGTH), get(seqs, seq + START)
    for _ in range(min(count, length - start)):
        block = get(seqs, seq + FIRST_BLOCK)
        remove_suffix(head, nodes, text, block + TEXT_WIDTH * (1 + (start & (size - 1))))
        start += 1
        poke(head, TOKENS, peek(head, TOKENS) - 1)
        if start & (size - 1) == 0 or start == length:
            following = get(text, block + NEXT_BLOCK)
            put(seqs, seq + FIRST_BLOCK, following)
            if following != 0:
                put(text, following + PREVIOUS_BLOCK, 0)
            put(text, block + NEXT_BLOCK, peek(head, BLOCK_FREE))
            poke(head, BLOCK_FREE, block)
            poke(head, BLOCK_COUNT, peek(head, BLOCK_COUNT) - 1)
    put(seqs, seq + START, start)
    return length - start
