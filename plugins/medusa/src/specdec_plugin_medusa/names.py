"""The spellings of tensors in Medusa files, and the one spelling used here, which is vLLM's; knows no shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

PREFIXES: Final = ("medusa_heads.", "medusa_head.", "module.")
TOKEN_MAP: Final = "token_map"
QUANTIZED: Final = re.compile(r"(scale|scales|zero_point|qweight|qzeros|scale_inv|weight_packed)$")
_NEW: Final = re.compile(r"blocks\.\d+\.layers\.\d+\.(weight|bias)|lm_heads\.\d+\.(weight|bias)|token_map")
_OLD_LAYER: Final = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OLD_HEAD: Final = re.compile(r"(\d+)\.(\d+)\.(weight|bias)")
_LAYER: Final = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight")
_HEAD: Final = re.compile(r"lm_heads\.(\d+)\.weight")


@dataclass(frozen=True, kw_only=True)
class Names:
    """The tensors of a file that are Medusa's.

    files      name in the file by the name used here
    depth      residual layers of a head, where old names say it: the index of a head's last module; else None
    strangers  names that stand among the heads' and mean nothing here
    """

    files: Mapping[str, str]
    depth: int | None
    strangers: tuple[str, ...]

    @property
    def layers(self) -> frozenset[tuple[int, int]]:
        """(head, layer) of every residual layer that is stored."""
        found = (_LAYER.fullmatch(name) for name in self.files)
        return frozenset((int(match[1]), int(match[2])) for match in found if match)

    @property
    def heads(self) -> frozenset[int]:
        """Indices of the output heads that are stored."""
        return frozenset(int(match[1]) for match in map(_HEAD.fullmatch, self.files) if match)


def spelled(names: Iterable[str]) -> Names:
    """Sort out the tensors of a file. Where some stand under one of the method's prefixes, the others are the target's.

    Raises ValueError for two that claim one name, and for heads with different numbers of layers.
    """
    stripped = {name: _without_prefix(name) for name in sorted(names)}
    inside = [name for name, rest in stripped.items() if rest != name and name.startswith(PREFIXES[:2])]
    files: dict[str, str] = {}
    depths: dict[int, str] = {}
    strangers = []
    for name in inside or stripped:
        ours, depth = _spell(stripped[name])
        if ours is None:
            strangers.append(name)
            continue
        if ours in files:
            message = f"the tensors {files[ours]} and {name} are both {ours}"
            raise ValueError(message)
        files[ours] = name
        if depth is not None:
            depths[depth] = name
    if len(depths) > 1:
        (one, first), (other, second), *_ = sorted(depths.items())
        message = f"its heads have different numbers of layers: {first} says {one}, {second} says {other}"
        raise ValueError(message)
    return Names(files=files, depth=next(iter(depths), None), strangers=tuple(strangers))


def _without_prefix(name: str) -> str:
    for prefix in (*PREFIXES, *PREFIXES):  # in any order
        name = name.removeprefix(prefix)
    return name


def _spell(name: str) -> tuple[str | None, int | None]:
    """Return the name used here, None for a stranger; and the index of the module if it is the last of an old head."""
    if _NEW.fullmatch(name):
        return name, None
    layer = _OLD_LAYER.fullmatch(name)
    if layer:
        return f"blocks.{layer[1]}.layers.{layer[2]}.{layer[3]}", None
    head = _OLD_HEAD.fullmatch(name)
    if head:
        return f"lm_heads.{head[1]}.{head[3]}", int(head[2])
    return None, None
