"""The tables that the fused pass reads: names of their columns, and nothing of how they are filled or used."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any


class _Columns(IntEnum):
    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[Any]) -> int:
        return count


class S(_Columns):
    """Columns of a step, int64: sizes, and addresses of buffers [rows, ...] in the model's dtype."""

    KIND = auto()  # index of the dtype in the attention op's KINDS
    SIZE = auto()  # bytes of an element
    ROWS = auto()
    HIDDEN = auto()
    HEADS = auto()
    KV_HEADS = auto()
    DIMS = auto()  # of a head
    LAYERS = auto()
    STYLE = auto()  # of the norms' weights
    ACTIVATION = auto()
    HALF = auto()  # half of the dimensions of a head that turn
    STATE = auto()  # the residual stream [rows, hidden]
    NORMED = auto()  # [rows, hidden]
    Q = auto()
    K = auto()
    V = auto()
    MIXED = auto()  # what attention returns [rows, heads * dims]
    DELTA = auto()  # what is added to the residual stream next [rows, hidden]
    GATE = auto()
    UP = auto()
    OUT = auto()  # final states [rows, hidden]
    FINAL_NORM = auto()
    SLOTS = auto()  # [rows] int64
    BLANK = auto()  # [BLANKS] int64 rows of no segment
    BLANKS = auto()
    PAGES = auto()  # page table [segments, PAGE_COLUMNS] int64
    SEGMENTS = auto()
    PAGE_COLUMNS = auto()
    PAGE_SIZE = auto()
    K_PAGE = auto()  # bytes from page to page, head to head, key to key
    K_HEAD = auto()
    K_KEY = auto()
    V_PAGE = auto()
    V_HEAD = auto()
    V_KEY = auto()
    SCRATCH = auto()  # of all threads
    SCRATCH_BYTES = auto()  # of one, a multiple of 64
    PARTIALS = auto()  # records of chunks of attention
    BARRIER = auto()  # address of a function that waits for all threads
    LAYER_TABLE = auto()
    FLOAT_TABLE = auto()
    PLAN_TABLE = auto()  # [PLANS, len(P)]
    PLANS = auto()
    ROPES = auto()
    ROPE_TABLE = auto()  # [ROPES, 2] addresses of cos and sin [rows, 2 HALF]


class L(_Columns):
    """Columns of a layer, int64: addresses of float32 vectors and of packed weights; 0 where a layer has none."""

    IN_NORM = auto()
    Q_NORM = auto()
    K_NORM = auto()
    ATTENTION_NORM = auto()  # of what attention adds
    MLP_NORM = auto()
    OUT_NORM = auto()  # of what the MLP adds
    Q = auto()
    Q_BIAS = auto()
    K = auto()
    K_BIAS = auto()
    V = auto()
    V_BIAS = auto()
    O = auto()  # noqa: E741
    O_BIAS = auto()
    GATE = auto()
    GATE_BIAS = auto()
    UP = auto()
    UP_BIAS = auto()
    DOWN = auto()
    DOWN_BIAS = auto()
    INNER = auto()  # outputs of gate and up
    WINDOW = auto()
    PLAN = auto()  # row of the plan table
    ROPE = auto()  # row of the rope table, or -1
    SINKS = auto()
    K_PAGES = auto()
    V_PAGES = auto()
    TAP = auto()  # where the residual stream at the layer's input goes [rows, hidden]


class F(_Columns):
    """Columns of a layer, float64; the row after the last layer's has the final norm's epsilon as IN_NORM."""

    IN_NORM = auto()
    Q_NORM = auto()
    K_NORM = auto()
    ATTENTION_NORM = auto()
    MLP_NORM = auto()
    OUT_NORM = auto()
    SCALE = auto()  # of scores, log2(e) included unless there is a soft cap
    SOFTCAP = auto()
    RESIDUAL = auto()  # factor of what is added to the residual stream


class P(_Columns):
    """Columns of a plan of attention, int64; see `specdec_nn.ops.attention.plan.Plan`."""

    ITEMS = auto()
    ITEM_COUNT = auto()
    MERGES = auto()
    MERGE_COUNT = auto()
    PATHS = auto()
    PATH_LENGTH = auto()
    POSITIONS = auto()  # [rows], and the positions past the last that rows see, filled by the pass itself
    ENDS = auto()
    TREE_TILES = auto()
