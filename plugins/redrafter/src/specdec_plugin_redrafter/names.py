"""The names of tensors in files of recurrent drafters, and those used here; it knows no shapes.

The output stands behind the residual layers in one list, so that its number is theirs: `lm_head.2.weight` after two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from specdec_nn.checkpoints.names import canonical_names
from specdec_nn.checkpoints.reader import Names

LAYER: Final = "layers.{}.linear.{}"
OUTPUT: Final = "output.weight"
TENSORRT: Final = "drafter."  # in front of the drafter's tensors in files with the target's beside them
UNUSED: Final = "emb_norm.weight"  # stored by one variant, and used by none
_LIST: Final = re.compile(r"(lm_heads?|0)\.(\d+)\.(linear\.weight|linear\.bias|weight)")
_OTHERS: Final = re.compile(r"(input_proj|rnn_u|rnn_w)\.(weight|bias)")
_TENSORRT_LAYER: Final = re.compile(r"layers\.\d+\.linear\.(weight|bias)")


def canonical(names: Iterable[str]) -> Names:
    """Return the file's name of each tensor by the name used here, and the names that have none; raises ConfigError."""
    names = list(names)
    is_tensorrt = any(name.startswith(TENSORRT) for name in names)
    return canonical_names(names, _of_tensorrt if is_tensorrt else _spell)


def is_of_drafter_alone(output: str) -> bool:
    """Return whether the name of the output in the file is one that heads of no other kind have."""
    return not output.startswith("0.")


def place_of_output(output: str) -> int | None:
    """Return the number in the output's name in the file, None if it has none."""
    found = _LIST.fullmatch(output)
    return int(found[2]) if found else None


def _spell(name: str) -> str | None:
    name = name.replace("input_projs.", "input_proj.", 1) if name.startswith("input_projs.") else name
    if found := _LIST.fullmatch(name):
        return OUTPUT if found[3] == "weight" else f"layers.{found[2]}.{found[3]}"
    return name if _OTHERS.fullmatch(name) else None


def _of_tensorrt(name: str) -> str | None:
    inner = name.removeprefix(TENSORRT)
    if inner == name:
        return None
    if inner == "lm_head.weight":
        return OUTPUT
    return inner if _OTHERS.fullmatch(inner) or _TENSORRT_LAYER.fullmatch(inner) else None
