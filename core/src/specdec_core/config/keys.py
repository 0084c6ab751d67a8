"""What can be known of a key of a speculative configuration: five kinds, each with what happens to it and why.

Which key is of which kind is in `specdec_core.config.key_table`; what a configuration does about it in
`specdec_core.config.resolution`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True)
class Values:
    """Values that may be given: in words, and as a test."""

    words: str
    fit: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


FLAG: Final = Values("`true` or `false`", lambda value: type(value) is bool)
TEXT: Final = Values("a text", lambda value: isinstance(value, str) and bool(value))
COUNT: Final = Values("a whole number >= 0", _is_count)


@dataclass(frozen=True)
class Common:
    """A key that is the same for all methods: a field of `SpeculativeConfig`.

    by       who acts on it: "core" or "host"
    values   what may be given, in words
    meaning  what it does, in words
    """

    by: Literal["core", "host"]
    values: str
    meaning: str


@dataclass(frozen=True)
class NoEffect:
    """A key whose values all come to the same here, so that each of them is accepted.

    values    what may be given
    reason    why nothing depends on it
    excludes  keys with the values that a true value cannot stand beside
    """

    values: Values
    reason: str
    excludes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Option:
    """A key that plugins of some kind have as an option. Where no selected one has it, it is ignored with a warning.

    kind      what has it: a "method" or a "verifier"
    of        which of these, in words
    harmless  values that are already the default, so that nobody need be warned
    """

    kind: Literal["method", "verifier"]
    of: str
    harmless: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Refused:
    """A key that asks for something that cannot be given here.

    reason    why it is refused
    harmless  values that are already the default
    step      what to do
    """

    reason: str
    harmless: tuple[Any, ...] = ()
    step: str = "leave it out"


@dataclass(frozen=True)
class Old:
    """A key that has another name now, and is read as that one with a warning.

    new     the key's name now
    values  what its values are now, empty where they have not changed
    """

    new: str
    values: Mapping[str, str] = field(default_factory=dict)


Key = Common | NoEffect | Option | Refused | Old


def is_one_of(value: Any, known: tuple[Any, ...]) -> bool:
    """Return whether a value is one of the known ones; true and 1 are different values."""
    plain = copy.deepcopy(value)  # what a configuration holds is read-only, and so of types of its own
    return any(type(plain) is type(each) and plain == each for each in known)
