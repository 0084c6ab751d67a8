"""What the compiled attention is told: records of numbers and addresses, in place of long argument lists.

A record lies in a numpy array of its dtype; compiled code gets its address and reads the fields by name. Whoever makes
a record keeps it, and the memory behind its addresses, alive.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from specdec_nn.ops.cpu.records import int64_fields, record_reader

# One call: all rows of a step in one layer. Strides and sizes are in bytes, the rest in elements.
CALL: Final = np.dtype(
    [
        *int64_fields("kind", "size"),  # of stored elements: index into KINDS, bytes
        *int64_fields("q", "q_row", "q_head"),  # an address, then from row to row and from head to head
        *int64_fields("k", "k_row", "k_head"),
        *int64_fields("v", "v_row", "v_head"),
        *int64_fields("k_pages", "k_page", "k_page_head", "k_key"),  # an address, then from page to page, head, key
        *int64_fields("v_pages", "v_page", "v_page_head", "v_key"),
        *int64_fields("out"),  # [rows, heads, width], elements as stored
        *int64_fields("sinks"),  # [heads] float32, or 0
        *int64_fields("heads", "kv_heads", "group"),  # group = heads / kv_heads
        *int64_fields("dims", "width", "columns"),  # of a key, of a value, and the width up to whole vectors
        *int64_fields("record"),  # size of a running softmax with its sums, see `specdec_nn.ops.cpu.softmax`
        *int64_fields("window", "page_size"),
        # Tables of the plan of the step, int64; see `specdec_nn.ops.attention.plan.Plan`.
        *int64_fields("rows", "table_width", "slots", "page_table", "paths", "positions", "ends"),
        *int64_fields("items", "merges", "blank", "item_count", "merge_count", "blank_count"),
        *int64_fields("partial_rows", "longest", "tree_tiles", "work"),
        ("scale", np.float32),  # of queries
        ("softcap", np.float32),  # 0 = none
    ]
)
CALL_FORMAT: Final = struct.Struct(f"={len(CALL.names or ()) - 2}q2f")  # packs one much sooner than numpy does
ITEM: Final = np.dtype(
    int64_fields(
        "segment", "start", "rows", "low", "high", "past", "tree", "first_chunk", "end_chunk", "partial", "mutual"
    )
)
MERGE: Final = np.dtype(int64_fields("row", "place", "rows", "partial", "chunks"))

call_at: Final = record_reader(CALL)
item_at: Final = record_reader(ITEM)
merge_at: Final = record_reader(MERGE)


class Task(NamedTuple):
    """One task of a call: the rows of an item, for the heads of one kv head; numbers, then addresses.

    head, start, rows, low, past, tree    kv head; the rest as in `Plan.items`
    page_table   pages of the segment
    positions    of the task's rows, and `ends` past the last keys that they see
    pointers     [KEYS] int64: addresses of the keys of a tile
    queries      [rows * group, dims] float32, scaled
    keys         [dims, KEYS] float32, and values [KEYS, columns]: a tile
    scores       [BLOCK, KEYS] float32 with factors behind them: a block of rows on one tile
    running      records of all that the rows have seen, and states those of the chunk at hand
    tree_values  [tree_tiles * KEYS, columns] float32, and tree_scores [tree_tiles, rows * group, KEYS]
    """

    head: int
    start: int
    rows: int
    low: int
    past: int
    tree: int
    page_table: int
    positions: int
    ends: int
    pointers: int
    queries: int
    keys: int
    values: int
    scores: int
    running: int
    states: int
    tree_values: int
    tree_scores: int
