"""Which distribution offers a name that is not installed: only names that the project publishes, and no guesses.

The table is the file `distributions.json` beside this one: kinds, distributions, and their names, old ones included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final

TABLE: Final = "distributions.json"


@cache
def homes(kind: str) -> dict[str, str]:
    """Return the distribution of each published name of a kind; none for kinds that only third parties offer."""
    table = json.loads((files("specdec_core") / TABLE).read_text(encoding="utf-8"))
    return {name: distribution for distribution, names in table.get(kind, {}).items() for name in names}


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant: of other case, dashes or brackets first, else a near miss."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(_fold(name), name)
    wanted = _fold(given)
    if wanted in folded:
        return folded[wanted]
    close = get_close_matches(wanted, folded, n=1)
    return folded[close[0]] if close else None


def _fold(name: str) -> str:
    return name.strip().removeprefix("[").removesuffix("]").replace("-", "_").casefold()
