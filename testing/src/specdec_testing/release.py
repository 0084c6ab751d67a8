"""What is kept of an object that is no longer needed: references to it, and texts under which it was; no requests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final
from weakref import ReferenceType

import torch

# What belongs to the process or to the target, and not to the object itself.
OTHERS: Final = (FunctionType, ModuleType, type, torch.Tensor, torch.nn.Module)


def still_held(run: Callable[[], object], seen: Mapping[str, ReferenceType[Any]]) -> list[str]:
    """Return the names in `seen` of objects that are referred to after `run`, which makes them; dead cycles are none.

    What was there before `run` is collected only if something is left without it: beside torch and transformers that
    takes tenths of a second.
    """

    def left() -> list[str]:
        gc.collect()
        return [name for name, reference in seen.items() if reference() is not None]

    gc.freeze()
    try:
        run()
        found = left()
    finally:
        gc.unfreeze()
    return found and left()


def kept_keys(root: object) -> set[str]:
    """Return every string that is a key of a dict, or in a set, which `root` holds, however deep."""
    keys: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, OTHERS):
            seen.add(id(found))
            waiting += gc.get_referents(found)
            if isinstance(found, (dict, set)):
                keys |= {key for key in found if isinstance(key, str)}
    return keys
