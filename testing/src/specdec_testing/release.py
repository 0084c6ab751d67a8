"""Which texts an object keeps, found through its containers and attributes; it knows nothing of requests or drafts."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any, Final

import torch

# What belongs to the process or to the target, and not to the object itself.
OTHERS: Final = (FunctionType, ModuleType, type, torch.Tensor, torch.nn.Module)


def kept_texts(root: object) -> set[str]:
    """Return every string that `root` holds, as a key or a value, however deep."""
    texts: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            texts.add(found)
        elif id(found) not in seen and not isinstance(found, OTHERS):
            seen.add(id(found))
            waiting += gc.get_referents(found)
            if isinstance(found, dict):  # its keys are no referents where all are strings
                waiting += found
    return texts
