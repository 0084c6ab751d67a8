"""The records that the fused pass reads: names of their fields, and nothing of how they are filled or used."""

from __future__ import annotations

from typing import Final

import numpy as np

from specdec_nn.ops.cpu.records import int64_fields, record_reader

NORMS: Final = ("in_norm", "q_norm", "k_norm", "attention_norm", "mlp_norm", "out_norm")
PRODUCTS: Final = ("q", "k", "v", "o", "gate", "up", "down")


# One call of the pass. Addresses are of buffers [rows, ...] in the model's dtype unless told otherwise.
STEP: Final = np.dtype(
    [
        *int64_fields("kind", "size"),  # of stored elements: index into the attention op's KINDS, bytes
        *int64_fields("rows", "hidden", "heads", "kv_heads", "dims"),  # dims: of a head
        *int64_fields("half"),  # half of the dimensions of a head that turn
        *int64_fields("style", "activation"),  # of all norms, of all MLPs; see `elementwise`
        *int64_fields("state"),  # the residual stream [rows, hidden]
        *int64_fields("normed"),  # [rows, hidden]
        *int64_fields("asked", "inputs"),  # what q, k and v are made of [rows, inputs]: `normed`, or given
        *int64_fields("q", "k", "v", "mixed"),  # heads before attention, and [rows, heads * dims] after it
        *int64_fields("delta"),  # what is added to the residual stream next [rows, hidden]
        *int64_fields("gate", "up"),
        *int64_fields("out", "out_norm"),  # final states [rows, hidden]; float32 weight of the last norm, 0: none
        *int64_fields("scratch", "scratch_bytes"),  # of all threads, of one
        *int64_fields("partials"),  # records of chunks of attention
        *int64_fields("barrier"),  # a function in which all threads of the team meet
        *int64_fields("panel", "task"),  # functions of the linear op and of attention, for `outline.call`
        *int64_fields("layers", "layer_count"),  # LAYER records, one more than there are layers: for its `tap`
        *int64_fields("calls"),  # CALL records of attention, one a layer
        *int64_fields("slots"),  # [rows] int64
        *int64_fields("blank", "blank_count"),  # rows of no segment, int64
        *int64_fields("ropes"),  # addresses of cosines and of sines [rows, 2 half], by turns
        ("out_epsilon", np.float32),
    ]
)
# One layer. Addresses are of float32 weights of norms and of weights as they lie; 0 where a layer has none.
LAYER: Final = np.dtype(
    [
        *int64_fields(*NORMS),  # attention_norm and out_norm: of what attention and MLP add to the residual stream
        *int64_fields(*(name + part for name in PRODUCTS for part in ("", "_row", "_bias"))),  # _row: bytes an output
        *int64_fields("inner"),  # outputs of gate and of up
        *int64_fields("rope"),  # number of the pair of tables, or -1
        *int64_fields("tap"),  # where the residual stream at the layer's input goes [rows, hidden], or 0
        *((name + "_epsilon", np.float32) for name in NORMS),
        ("residual", np.float32),  # factor of what is added to the residual stream
    ]
)

step_at: Final = record_reader(STEP)
layer_at: Final = record_reader(LAYER)
