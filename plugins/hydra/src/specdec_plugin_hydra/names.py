"""The names of tensors in Hydra files, and those used here; it knows no shapes.

Used here are the names of files with `hydra_head_arch` "mlp", and for the prefix layer those of transformers' Llama.
The modules of "prefix-mlp" have a Dropout in front of each block, which their numbers count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from specdec_nn.checkpoints.decoder import EMBEDDING
from specdec_nn.checkpoints.names import Spell, canonical_names
from specdec_nn.checkpoints.reader import Names

BLOCK: Final = "hydra_mlp.{}.{}.{}.{}"  # head, block, "linear" or "res_connection", "weight" or "bias"
HEAD: Final = "hydra_lm_head.{}.{}"
NORM: Final = "norm.weight"
PREFIX: Final = "prefix_embeding_layer."  # spelled so in the files
OWN: Final = ("hydra_mlp.", "hydra_lm_head.", PREFIX)
UNUSED: Final = (f"{PREFIX}embed_tokens.", "rotary_emb.")  # parts of names whose tensors nothing reads
_BLOCK: Final = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_HEAD: Final = re.compile(r"hydra_lm_head\.(\d+)\.(1\.)?(weight|bias)")
_LAYER: Final = re.compile(r"layers\.0\..+|norm\.weight")


def canonical(names: Iterable[str]) -> Names:
    """Return the file's name of each tensor by the name used here, and the names that have none; raises ConfigError."""
    names = list(names)
    has_dropout = any(match[2] for match in map(_HEAD.fullmatch, names) if match)
    return canonical_names(names, _spelled(2 if has_dropout else 1))


def is_unused(name: str) -> bool:
    """Return whether a tensor of the file is one that nothing reads."""
    return any(part in name for part in UNUSED)


def _spelled(modules: int) -> Spell:
    """Return what spells names of files with so many modules a block, of which the last one has the tensors."""

    def spell(name: str) -> str | None:
        if is_unused(name):
            return None
        if block := _BLOCK.fullmatch(name):
            number, rest = divmod(int(block[2]) + 1, modules)
            return None if rest else BLOCK.format(block[1], number - 1, block[3], block[4])
        if head := _HEAD.fullmatch(name):
            return HEAD.format(head[1], head[3])
        if name == "input_embed_fn.weight":
            return EMBEDDING
        inner = name.removeprefix(PREFIX)
        return inner if inner != name and _LAYER.fullmatch(inner) else None

    return spell
