"""What is known of an MTP module's tensors by name, dtype and the target's width alone; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specdec_nn.checkpoints.reader import FLOATS, SCALE, Shape, listed

# Endings of tensors that other quantised formats have in place of, or beside, a weight.
QUANTISED: Final = (
    *("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_scale", "weight_zero_point"),
    *("weight_scale_2", "weight_global_scale", "weight_scale_inv", "gate_up_proj_blocks", "gate_up_proj_scales"),
)
LISTED: Final = 12
# Parts of every family that read the target's width, write it, or norm it.
NORMS: Final = (
    *("enorm", "hnorm", "enorm.m", "hnorm.m", "shared_head.norm", "input_layernorm", "post_attention_layernorm"),
    *("token_layernorm", "hidden_layernorm", "final_layernorm"),
    *("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
)
PROJECTIONS: Final = ("eh_proj", "input_proj", "mtp.fc")
READING: Final = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa", "gate_proj", "up_proj")
WRITING: Final = ("o_proj", "down_proj")


def shape_for(name: str, width: int) -> Shape | None:
    """Return the shape of a weight in a module for a target of that width, None where the width does not tell it."""
    shapes: dict[tuple[str, ...], Shape] = {
        NORMS: (width,),
        PROJECTIONS: (width, 2 * width),
        READING: (None, width),
        WRITING: (width, None),
    }
    for parts, shape in shapes.items():
        if f".{name}".endswith(tuple(f".{part}.weight" for part in parts)):
            return shape
    return None


def quantised(dtypes: Mapping[str, str]) -> str | None:
    """Return why tensors of these dtypes, by name, cannot be read, None if they can.

    Read are plain weights, and FP8 ones with a scale for each block.
    """
    scaled = {name.removesuffix(SCALE) for name in dtypes if name.endswith(SCALE)} & dtypes.keys()
    known = scaled | {name + SCALE for name in scaled}
    strange = [
        n for n, d in dtypes.items() if n not in known and (n.rpartition(".")[2] in QUANTISED or d not in FLOATS)
    ]
    if not strange:
        return None
    return (
        f"quantised in a way that is not known here: {listed(strange, LISTED)}; known are plain weights, and FP8 "
        f"weights with a {SCALE.removeprefix('_')} for each block"
    )
