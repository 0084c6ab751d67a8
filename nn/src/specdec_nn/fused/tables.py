"""The records that the fused pass reads: names of their fields, and nothing of how they are filled or used."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from specdec_nn.ops.cpu.records import record_reader

NORMS: Final = ("in_norm", "q_norm", "k_norm", "attention_norm", "mlp_norm", "out_norm")
PRODUCTS: Final = ("q", "k", "v", "o", "gate", "up", "down")


def _integers(*names: str) -> list[tuple[str, Any]]:
    return [(name, np.int64) for name in names]


# One call of the pass. Addresses are of buffers [rows, ...] in the model's dtype unless told otherwise.
STEP: Final = np.dtype(
    [
        *_integers("kind", "size"),  # of stored elements: index into the attention op's KINDS, bytes
        *_integers("rows", "hidden", "heads", "kv_heads", "dims"),  # dims: of a head
        *_integers("half"),  # half of the dimensions of a head that turn
        *_integers("style", "activation"),  # of all norms, of all MLPs; see `elementwise`
        *_integers("state"),  # the residual stream [rows, hidden]
        *_integers("normed"),  # [rows, hidden]
        *_integers("q", "k", "v", "mixed"),  # heads before attention, and [rows, heads * dims] after it
        *_integers("delta"),  # what is added to the residual stream next [rows, hidden]
        *_integers("gate", "up"),
        *_integers("out", "out_norm"),  # final states [rows, hidden], and the weight of the last norm, float32
        *_integers("scratch", "scratch_bytes"),  # of all threads, of one
        *_integers("partials"),  # records of chunks of attention
        *_integers("barrier"),  # a function in which all threads of the team meet
        *_integers("layers", "layer_count"),  # LAYER records, one more than there are layers: for its `tap`
        *_integers("calls"),  # CALL records of attention, one a layer
        *_integers("slots"),  # [rows] int64
        *_integers("blank", "blank_count"),  # rows of no segment, int64
        *_integers("ropes"),  # addresses of cosines and of sines [rows, 2 half], by turns
        ("out_epsilon", np.float32),
    ]
)
# One layer. Addresses are of float32 weights of norms and of weights as they lie; 0 where a layer has none.
LAYER: Final = np.dtype(
    [
        *_integers(*NORMS),  # attention_norm and out_norm: of what attention and MLP add to the residual stream
        *_integers(*(name + part for name in PRODUCTS for part in ("", "_row", "_bias"))),  # _row: bytes an output
        *_integers("inner"),  # outputs of gate and of up
        *_integers("rope"),  # number of the pair of tables, or -1
        *_integers("tap"),  # where the residual stream at the layer's input goes [rows, hidden], or 0
        *((name + "_epsilon", np.float32) for name in NORMS),
        ("residual", np.float32),  # factor of what is added to the residual stream
    ]
)

step_at: Final = record_reader(STEP)
layer_at: Final = record_reader(LAYER)
