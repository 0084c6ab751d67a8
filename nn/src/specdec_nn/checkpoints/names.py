"""How names of tensors in files become the names that a plugin uses; it knows no shapes and no method. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specdec_core.errors import ConfigError

# Returns the canonical name of a tensor in a file, None for a tensor that is not the head's.
Spell = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """The accepted spellings of a head's tensors. Applied in this order:

    ignored   parts of names whose tensors are never needed
    tables    names that may stand under any prefix, "d2t" for "model.d2t"
    prefixes  dropped from the front, each once, in order
    replaced  (spelling, canonical) pairs; one that begins with "." is replaced anywhere, others only at the front
    whole     canonical name of names that are replaced as a whole
    pattern   what a canonical name looks like in full; None accepts every name
    """

    ignored: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    whole: tuple[tuple[str, str], ...] = ()
    pattern: re.Pattern[str] | None = None

    def __call__(self, name: str) -> str | None:
        """Return the canonical name of a tensor, None for one that is not the head's."""
        if any(part in name for part in self.ignored):
            return None
        for table in self.tables:
            if name == table or name.endswith(f".{table}"):
                return table
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        for spelling, canonical in self.replaced:
            if name.startswith(spelling) or spelling.startswith("."):
                name = name.replace(spelling, canonical, 1)
        name = dict(self.whole).get(name, name)
        return name if self.pattern is None or self.pattern.fullmatch(name) else None


def canonical_names(names: Iterable[str], spell: Spell) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the file's name of each tensor by its canonical name, and the sorted names of tensors that have none.

    Raises ConfigError for two tensors that claim one name.
    """
    files: dict[str, str] = {}
    others = []
    for name in sorted(names):
        canonical = spell(name)
        if canonical is None:
            others.append(name)
        elif canonical in files:
            message = f"the tensors {files[canonical]} and {name} are both {canonical}"
            raise ConfigError(message)
        else:
            files[canonical] = name
    return files, tuple(others)
