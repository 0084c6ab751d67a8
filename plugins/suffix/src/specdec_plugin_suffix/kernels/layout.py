"""Names of the columns and slots in the arrays of a compiled forest; knows no algorithm.

A forest is some tries of the same depth limit over one store of text. Its arrays are flat, of int32 but for `head`. A
row is named by the index of its first number, and 0 means "none":

nodes   NODE_WIDTH numbers a node, a run of ids between two places of a trie
ties    first and last member of a tie, which is two or more neighbours among siblings with the same count
text    TEXT_WIDTH numbers a position
table   open addressing over (parent, first id of the run), for nodes with many siblings; a power of two of slots
seqs    SEQ_WIDTH numbers a sequence
head    int64: addresses and sizes of the arrays above, counters, settings

A suffix is named by the position of its first id. Text lies in blocks: a row of links, which names the block, a number
of rows of text, and as many rows as the tries are deep, which repeat the beginning of the next block. So the ids of a
suffix, as far as a trie goes, always follow one another. After a sequence's last id stands END_OF_TEXT.
"""

from __future__ import annotations

from typing import Final

# nodes: PARENT; TOKEN, the first id of the run; BOTTOM, the depth where the run ends (it begins at the parent's);
# SUFFIX, one that passes through the run; COUNT of suffixes that reach the run; FIRST child (negative if the children
# are in the table); NEXT sibling; PREVIOUS sibling (of the first: the last); TIE. A root has PARENT and BOTTOM 0.
PARENT, TOKEN, BOTTOM, SUFFIX, COUNT, FIRST, NEXT, PREVIOUS, TIE, NODE_WIDTH = range(10)

# ties: the FIRST_MEMBER and the LAST_MEMBER.
FIRST_MEMBER, LAST_MEMBER, TIE_WIDTH = range(3)

# text: the ID; END, the node at whose bottom the suffix that begins here ends, 0 if it is in no trie; the LATER and the
# EARLIER suffix that ends at the same node. In a block's row of links: the NEXT_BLOCK and the PREVIOUS_BLOCK.
ID, END, LATER, EARLIER, TEXT_WIDTH = range(5)
NEXT_BLOCK, PREVIOUS_BLOCK = 0, 1

# seqs: ROOT of its trie; FIRST_BLOCK, LAST_BLOCK; LENGTH, ids ever appended; START, how many of them are removed again.
ROOT, FIRST_BLOCK, LAST_BLOCK, LENGTH, START, SEQ_WIDTH = range(6)

ONLY: Final = SEQ_WIDTH  # the sequence of a request's own forest, which has one trie and one sequence
ENDLESS: Final = 2**30  # ids of the only block of such a forest
LEAST_BLOCK: Final = 64  # ids of a block of shared text, if tries are not deeper: half of one is unused after an answer
END_OF_TEXT: Final = -(2**31)  # the one id that no text may have
MANY: Final = 8  # more children than this are looked up in the table

(
    NODES_AT, TIES_AT, TEXT_AT, TABLE_AT, SEQS_AT,  # addresses
    NODE_ROWS, TEXT_ROWS, TABLE_SLOTS, SEQ_ROWS,  # sizes
    NODE_TOP, NODE_FREE, NODE_COUNT,  # first row never used, first of those given back, rows in use
    TIE_TOP, TIE_FREE, TIE_COUNT,
    BLOCK_TOP, BLOCK_FREE, BLOCK_COUNT,
    SEQ_TOP, SEQ_FREE, SEQ_COUNT,
    TABLE_COUNT,
    TOKENS,  # suffixes in the tries
    DEPTH, BLOCK,  # limit of depth; ids a block, a power of two that is not below it
    HEAD_SIZE,
) = range(26)  # fmt: skip

# A query, int64: what the steps of one request have in common. Addresses of the heads of its own forest and of the
# shared one (0: none); its sequence there (0: none) and the root of its trie; FACTOR, OFFSET and LEAST probability as
# the bits of float32; ids from VOCABULARY on are never drafted; TREE and WHOLE are 0 or 1; an address and a number of
# rows of SCRATCH memory. Results: SCORE as the bits of float32, and MATCHED, how many last ids were found.
(
    OWN, SHARED, SEQUENCE, TRIE, FACTOR, OFFSET, LEAST, VOCABULARY, TREE, WHOLE, SCRATCH_AT, SCRATCH_ROWS,
    SCORE, MATCHED,
    QUERY_SIZE,
) = range(15)  # fmt: skip

# An entry of the heap of a tree draft, in scratch memory: PROBABILITY (float32), the place (node and depth) that comes
# next, and the PARENT_AT, the index of the draft it would follow.
PROBABILITY, PLACE_NODE, PLACE_DEPTH, PARENT_AT, SCRATCH_WIDTH = range(5)
