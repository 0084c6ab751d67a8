"""Plain data that nobody can change in place, for what hosts hand to plugins; it reads no files.

Dicts and lists stay dicts and lists, so code that asks for either finds it. What they refuse is every method that
changes them; a copy, a deep copy and a pickled one are plain again and free to be changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, NoReturn

MESSAGE: Final = "this is what others are handed as well, so it cannot be changed; change a copy.deepcopy of it"


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(MESSAGE)


class ReadOnlyDict(dict[str, Any]):
    """A dict whose values are read-only as well."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, Any]:
        """Return a plain dict of the same values."""
        return dict(self)

    copy = __copy__

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        """Return plain data."""
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain dict."""
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list whose items are read-only as well."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __copy__(self) -> list[Any]:
        """Return a plain list of the same items."""
        return list(self)

    copy = __copy__

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        """Return plain data."""
        return [copy.deepcopy(item, memo) for item in self]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain list."""
        return list, (list(self),)


def read_only(value: Any) -> Any:
    """Return plain data as a read-only copy: dicts, lists and tuples however deep, other values as they are."""
    if isinstance(value, ReadOnlyDict | ReadOnlyList):
        return value
    if isinstance(value, Mapping):
        return ReadOnlyDict({key: read_only(item) for key, item in value.items()})
    if isinstance(value, list):
        return ReadOnlyList([read_only(item) for item in value])
    if type(value) is tuple:
        return tuple(read_only(item) for item in value)
    return value
