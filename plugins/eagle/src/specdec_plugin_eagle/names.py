"""The spellings of tensors in EAGLE files, and the one spelling used here; knows no shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PREFIXES: Final = ("model.", "module.")
SPELLINGS: Final = (
    ("midlayer.", "layers.0."),
    ("eagle_layers.", "layers."),
    ("eagle_linear.", "fc."),
    (".feed_forward.", ".mlp."),
)
IGNORED: Final = ("rotary_emb.", "verifier_norm.", "verifier_lm_head.")


def spell(name: str) -> str | None:
    """Return the name used here for a tensor of a file, None for one that is never needed.

    Prefixes of trainers are dropped, `midlayer.` is `layers.0.`, and maps may have any prefix.
    """
    if any(part in name for part in IGNORED):
        return None
    for table in ("d2t", "t2d"):
        if name == table or name.endswith(f".{table}"):
            return table
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for spelling, ours in SPELLINGS:
        if name.startswith(spelling) or spelling.startswith("."):
            name = name.replace(spelling, ours, 1)
    return name


def spelled(names: Iterable[str]) -> dict[str, str]:
    """Return the file's name of each tensor by the name used here; raises ValueError for two that claim one name."""
    found: dict[str, str] = {}
    for name in sorted(names):
        ours = spell(name)
        if ours is None:
            continue
        if ours in found:
            message = f"the tensors {found[ours]} and {name} are both {ours}"
            raise ValueError(message)
        found[ours] = name
    return found
