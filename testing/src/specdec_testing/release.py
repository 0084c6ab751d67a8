"""Under which texts an object keeps something, found through its containers and attributes; it knows no requests."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any, Final

import torch

# What belongs to the process or to the target, and not to the object itself.
OTHERS: Final = (FunctionType, ModuleType, type, torch.Tensor, torch.nn.Module)


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
