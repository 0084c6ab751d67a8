"""Children of a node: finding one by its id, and their order by count; knows neither text nor sequences.

Order: by count, descending. A child that gains a count passes its whole tie; if it was the first of it, then also the
whole tie of the next count, else it comes last in that. A child that loses a count passes its whole tie too, and comes
first in the next. A new child comes last. Children of a root are in no order, for nothing is drafted from a root.
"""

from __future__ import annotations

import numpy as np

from specdec_plugin_suffix.kernels.layout import (
    BOTTOM,
    COUNT,
    FIRST,
    FIRST_MEMBER,
    LAST_MEMBER,
    MANY,
    NEXT,
    NODE_COUNT,
    NODE_FREE,
    NODE_TOP,
    NODE_WIDTH,
    PARENT,
    PREVIOUS,
    TABLE_AT,
    TABLE_COUNT,
    TABLE_SLOTS,
    TIE,
    TIE_COUNT,
    TIE_FREE,
    TIE_TOP,
    TIE_WIDTH,
    TIES_AT,
    TOKEN,
)
from specdec_plugin_suffix.kernels.memory import compiled, get, peek, poke, put


@compiled
def home(parent: int, token: int) -> int:
    """Return 31 well-mixed bits of (parent, first id)."""
    key = (np.uint64(parent) << np.uint64(32)) | np.uint64(np.uint32(token))
    key = (key ^ (key >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    bits: int = np.int64(key >> np.uint64(33))
    return bits


@compiled
def find(head: int, nodes: int, parent: int, token: int) -> int:
    """Return the child that begins with an id, 0 if there is none."""
    child = get(nodes, parent + FIRST)
    if child >= 0:
        while child != 0 and get(nodes, child + TOKEN) != token:
            child = get(nodes, child + NEXT)
        return child
    table, mask = peek(head, TABLE_AT), peek(head, TABLE_SLOTS) - 1
    slot = home(parent, token) & mask
    child = get(table, slot)
    while child != 0 and not (get(nodes, child + TOKEN) == token and get(nodes, child + PARENT) == parent):
        slot = (slot + 1) & mask
        child = get(table, slot)
    return child


@compiled
def enter(head: int, nodes: int, child: int) -> None:
    """Enter a child in the table."""
    table, mask = peek(head, TABLE_AT), peek(head, TABLE_SLOTS) - 1
    slot = home(get(nodes, child + PARENT), get(nodes, child + TOKEN)) & mask
    while get(table, slot) != 0:
        slot = (slot + 1) & mask
    put(table, slot, child)
    poke(head, TABLE_COUNT, peek(head, TABLE_COUNT) + 1)


@compiled
def slot_of(head: int, nodes: int, child: int) -> int:
    """Return the slot of a child that is in the table."""
    table, mask = peek(head, TABLE_AT), peek(head, TABLE_SLOTS) - 1
    slot = home(get(nodes, child + PARENT), get(nodes, child + TOKEN)) & mask
    while get(table, slot) != child:
        slot = (slot + 1) & mask
    return slot


@compiled
def leave(head: int, nodes: int, child: int) -> None:
    """Take a child out of the table; those that its entry had pushed on move back."""
    table, mask = peek(head, TABLE_AT), peek(head, TABLE_SLOTS) - 1
    hole = slot_of(head, nodes, child)
    slot = (hole + 1) & mask
    other = get(table, slot)
    while other != 0:
        at_home = home(get(nodes, other + PARENT), get(nodes, other + TOKEN))
        if (slot - at_home) & mask >= (slot - hole) & mask:
            put(table, hole, other)
            hole = slot
        slot = (slot + 1) & mask
        other = get(table, slot)
    put(table, hole, 0)
    poke(head, TABLE_COUNT, peek(head, TABLE_COUNT) - 1)


@compiled
def new_node(head: int, nodes: int) -> int:
    """Return a free row, as it was left."""
    node = peek(head, NODE_FREE)
    if node != 0:
        poke(head, NODE_FREE, get(nodes, node + NEXT))
    else:
        node = peek(head, NODE_TOP)
        poke(head, NODE_TOP, node + NODE_WIDTH)
    poke(head, NODE_COUNT, peek(head, NODE_COUNT) + 1)
    return node


@compiled
def free_node(head: int, nodes: int, node: int) -> None:
    """Give a row back."""
    put(nodes, node + NEXT, peek(head, NODE_FREE))
    poke(head, NODE_FREE, node)
    poke(head, NODE_COUNT, peek(head, NODE_COUNT) - 1)


@compiled
def new_tie(head: int, nodes: int, first: int, last: int) -> None:
    """Tie two neighbours."""
    ties, tie = peek(head, TIES_AT), peek(head, TIE_FREE)
    if tie != 0:
        poke(head, TIE_FREE, get(ties, tie))
    else:
        tie = peek(head, TIE_TOP)
        poke(head, TIE_TOP, tie + TIE_WIDTH)
    poke(head, TIE_COUNT, peek(head, TIE_COUNT) + 1)
    put(ties, tie + FIRST_MEMBER, first)
    put(ties, tie + LAST_MEMBER, last)
    put(nodes, first + TIE, tie)
    put(nodes, last + TIE, tie)


@compiled
def tie_before(head: int, nodes: int, child: int, member: int) -> int:
    """Make a child the first in the tie of its next sibling; return who was."""
    ties, tie = peek(head, TIES_AT), get(nodes, member + TIE)
    if tie == 0:
        new_tie(head, nodes, child, member)
        return member
    first = get(ties, tie + FIRST_MEMBER)
    put(ties, tie + FIRST_MEMBER, child)
    put(nodes, child + TIE, tie)
    return first


@compiled
def tie_after(head: int, nodes: int, member: int, child: int) -> None:
    """Make a child the last in the tie of its previous sibling."""
    tie = get(nodes, member + TIE)
    if tie == 0:
        new_tie(head, nodes, member, child)
    else:
        put(peek(head, TIES_AT), tie + LAST_MEMBER, child)
        put(nodes, child + TIE, tie)


@compiled
def untie(head: int, nodes: int, child: int) -> None:
    """Take a child out of its tie; it still stands where it stood."""
    ties, tie = peek(head, TIES_AT), get(nodes, child + TIE)
    if tie == 0:
        return
    put(nodes, child + TIE, 0)
    first, last = get(ties, tie + FIRST_MEMBER), get(ties, tie + LAST_MEMBER)
    if first == child:
        first = get(nodes, child + NEXT)
        put(ties, tie + FIRST_MEMBER, first)
    elif last == child:
        last = get(nodes, child + PREVIOUS)
        put(ties, tie + LAST_MEMBER, last)
    if first == last:
        put(nodes, first + TIE, 0)
        put(ties, tie, peek(head, TIE_FREE))
        poke(head, TIE_FREE, tie)
        poke(head, TIE_COUNT, peek(head, TIE_COUNT) - 1)


@compiled
def unlink(nodes: int, parent: int, child: int) -> None:
    """Take a child, which is in no tie, out of the list."""
    following, previous = get(nodes, child + NEXT), get(nodes, child + PREVIOUS)
    signed = get(nodes, parent + FIRST)
    first = abs(signed)
    if child == first:
        put(nodes, parent + FIRST, following if signed > 0 else -following)
    else:
        put(nodes, previous + NEXT, following)
    if following != 0:
        put(nodes, following + PREVIOUS, previous)
    elif child != first:
        put(nodes, first + PREVIOUS, previous)


@compiled
def link_before(nodes: int, parent: int, child: int, sibling: int) -> None:
    """Put a child, which is in no list, before a sibling."""
    signed, previous = get(nodes, parent + FIRST), get(nodes, sibling + PREVIOUS)
    put(nodes, sibling + PREVIOUS, child)
    put(nodes, child + NEXT, sibling)
    put(nodes, child + PREVIOUS, previous)
    if sibling == abs(signed):
        put(nodes, parent + FIRST, child if signed > 0 else -child)
    else:
        put(nodes, previous + NEXT, child)


@compiled
def link_after(nodes: int, parent: int, child: int, sibling: int) -> None:
    """Put a child, which is in no list, after a sibling."""
    following = get(nodes, sibling + NEXT)
    put(nodes, sibling + NEXT, child)
    put(nodes, child + NEXT, following)
    put(nodes, child + PREVIOUS, sibling)
    put(nodes, (following if following != 0 else abs(get(nodes, parent + FIRST))) + PREVIOUS, child)


@compiled
def add(head: int, nodes: int, parent: int, child: int) -> None:
    """Append a new child, whose count is 1; with more than MANY, all children are entered in the table."""
    first = get(nodes, parent + FIRST)
    put(nodes, child + TIE, 0)
    if first == 0:
        put(nodes, parent + FIRST, child)
        put(nodes, child + PREVIOUS, child)
        put(nodes, child + NEXT, 0)
        return
    last = get(nodes, abs(first) + PREVIOUS)
    link_after(nodes, parent, child, last)
    if get(nodes, parent + BOTTOM) != 0 and get(nodes, last + COUNT) == 1:
        tie_after(head, nodes, last, child)
    if first < 0:
        enter(head, nodes, child)
        return
    size, sibling = 0, first
    while sibling != 0:
        size += 1
        sibling = get(nodes, sibling + NEXT)
    if size > MANY:
        put(nodes, parent + FIRST, -first)
        sibling = first
        while sibling != 0:
            enter(head, nodes, sibling)
            sibling = get(nodes, sibling + NEXT)


@compiled
def take_out(head: int, nodes: int, parent: int, child: int) -> None:
    """Take a child out of the table, its tie and the list."""
    if get(nodes, parent + FIRST) < 0:
        leave(head, nodes, child)
    untie(head, nodes, child)
    unlink(nodes, parent, child)


@compiled
def promote(head: int, nodes: int, parent: int, child: int) -> None:
    """Bring a child to its place after its count has grown by one."""
    first = abs(get(nodes, parent + FIRST))
    if (child == first and get(nodes, child + NEXT) == 0) or get(nodes, parent + BOTTOM) == 0:
        return
    tie, leader = get(nodes, child + TIE), child
    if tie != 0:
        leader = get(peek(head, TIES_AT), tie + FIRST_MEMBER)
    before, joins = 0, False
    if leader != first:
        before = get(nodes, leader + PREVIOUS)
        joins = get(nodes, before + COUNT) == get(nodes, child + COUNT)
    untie(head, nodes, child)
    if leader != child:
        unlink(nodes, parent, child)
        link_before(nodes, parent, child, leader)
        if joins:
            tie_after(head, nodes, before, child)
    elif joins:
        unlink(nodes, parent, child)
        link_before(nodes, parent, child, tie_before(head, nodes, child, before))


@compiled
def demote(head: int, nodes: int, parent: int, child: int) -> None:
    """Bring a child to its place after its count has shrunk by one, to at least one."""
    if get(nodes, parent + BOTTOM) == 0:
        return
    tie, last = get(nodes, child + TIE), child
    if tie != 0:
        last = get(peek(head, TIES_AT), tie + LAST_MEMBER)
    untie(head, nodes, child)
    if last != child:
        unlink(nodes, parent, child)
        link_after(nodes, parent, child, last)
    following = get(nodes, child + NEXT)
    if following != 0 and get(nodes, following + COUNT) == get(nodes, child + COUNT):
        tie_before(head, nodes, child, following)


@compiled
def replace(head: int, nodes: int, old: int, new: int) -> None:
    """Put a node in the place of another, with its parent, first id and tie; the old one is then nowhere."""
    parent, tie = get(nodes, old + PARENT), get(nodes, old + TIE)
    signed, following, previous = get(nodes, parent + FIRST), get(nodes, old + NEXT), get(nodes, old + PREVIOUS)
    first = abs(signed)
    if signed < 0:
        put(peek(head, TABLE_AT), slot_of(head, nodes, old), new)
    put(nodes, new + PARENT, parent)
    put(nodes, new + TOKEN, get(nodes, old + TOKEN))
    put(nodes, new + NEXT, following)
    put(nodes, new + PREVIOUS, new if previous == old else previous)
    if old == first:
        put(nodes, parent + FIRST, new if signed > 0 else -new)
    else:
        put(nodes, previous + NEXT, new)
    if following != 0:
        put(nodes, following + PREVIOUS, new)
    elif old != first:
        put(nodes, first + PREVIOUS, new)
    put(nodes, new + TIE, tie)
    if tie != 0:
        ties = peek(head, TIES_AT)
        if get(ties, tie + FIRST_MEMBER) == old:
            put(ties, tie + FIRST_MEMBER, new)
        if get(ties, tie + LAST_MEMBER) == old:
            put(ties, tie + LAST_MEMBER, new)
