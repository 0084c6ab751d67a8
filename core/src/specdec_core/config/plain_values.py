"""Turns numpy's scalars and arrays in what a caller gives into plain Python values; imports no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value with numpy's scalars and arrays in it, however deep, as Python's numbers, texts and lists.

    A value without any is returned as it is, not as a copy.
    """
    if type(value).__module__ == "numpy" and callable(getattr(value, "tolist", None)):
        return value.tolist()
    if isinstance(value, Mapping):
        changed = {plain(key): plain(item) for key, item in value.items()}
        pairs = zip(changed.items(), value.items(), strict=False)
        same = len(changed) == len(value) and all(a is c and b is d for (a, b), (c, d) in pairs)
        return value if same else changed
    if type(value) in (list, tuple):
        items = [plain(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    return value
