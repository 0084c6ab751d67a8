"""One text for plain data, equal in every process and for every order of keys; knows nothing of what the data means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the data as sorted JSON, in hexadecimal.

    Mappings and sets have no order here, lists and tuples do. Raises ValueError for what is no plain data: its text
    could be another one in another process.
    """
    text = json.dumps(_ordered(data), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _ordered(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_ordered(each) for each in value), key=json.dumps)
    if isinstance(value, list | tuple):
        return [_ordered(each) for each in value]
    return to_jsonable_python(value)
