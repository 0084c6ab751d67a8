"""Writes the tables of keys in docs/configuration.md out of `specdec_core.config.key_table`; knows no configuration.

`python -m specdec_core.config.key_docs docs/configuration.md` rewrites what stands between the marks in the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from specdec_core.config.key_table import KEYS
from specdec_core.config.keys import Common, NoEffect, Old, Option, Refused

BEGIN: Final = "<!-- {} keys, written by: python -m specdec_core.config.key_docs docs/configuration.md -->\n"
END: Final = "<!-- end of {} keys -->\n"
Kind = TypeVar("Kind")


def rewrite(page: str) -> str:
    """Return a page with the tables between its marks as the table of keys has it; ValueError if a mark is missing."""
    for name, text in (("common", _common()), ("other", "\n".join((_options(), _no_effect(), _refused(), _old())))):
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            message = f"the page lacks a line {begin.strip()!r} or {end.strip()!r}"
            raise ValueError(message)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def _common() -> str:
    text = "Fields of `SpeculativeConfig`, the same for all methods.\n"
    rows = ((key, known.values, known.by, known.meaning) for key, known in _of(Common).items())
    return _section("Common keys", text, ("key", "value", "acted on by", "meaning"), rows)


def _options() -> str:
    text = (
        "Each is an option of some plugins and acted on by them. Where no selected plugin has it, it is ignored with\n"
        "a warning that names both, unless its value is already the default.\n"
    )
    rows = ((key, known.of, _values(known.harmless)) for key, known in _of(Option).items())
    return _section("Keys of vLLM that plugins act on", text, ("key", "option of", "already the default"), rows)


def _no_effect() -> str:
    text = "Accepted, as nothing depends on them here; `specdec explain` gives the reason.\n"
    columns = ("key", "accepted", "why it has no effect")
    rows = ((key, known.values.words, known.reason + _excluded(known)) for key, known in _of(NoEffect).items())
    return _section("Keys without effect", text, columns, rows)


def _refused() -> str:
    text = (
        "They ask for something that cannot be given here. A plugin may have one of them as an option, and a host may\n"
        "act on one; then it is theirs.\n"
    )
    columns = ("key", "already the default", "why it is refused otherwise", "what to do")
    rows = ((key, _values(known.harmless), known.reason, known.step) for key, known in _of(Refused).items())
    return _section("Refused keys", text, columns, rows)


def _old() -> str:
    text = "Read as the key of today, with a warning. Giving both is refused.\n"
    rows = ((key, f"`{known.new}`", _changes(known.values)) for key, known in _of(Old).items())
    return _section("Old names", text, ("key", "is now", "values"), rows)


def _of(kind: type[Kind]) -> dict[str, Kind]:
    return {key: known for key, known in KEYS.items() if isinstance(known, kind)}


def _values(values: Sequence[Any]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values) or "-"


def _changes(values: Mapping[str, str]) -> str:
    return ", ".join(f"`{old}` is `{new}`" for old, new in values.items()) or "as they were"


def _excluded(known: NoEffect) -> str:
    against = [f"`{key}` `{json.dumps(value)}`" for key, value in known.excludes.items()]
    return f". `true` is refused beside {' or '.join(against)}" if against else ""


def _section(heading: str, text: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(columns), "|" + "---|" * len(columns)]
    lines += [_row((f"`{key}`", *cells)) for key, *cells in rows]
    return "\n".join((f"## {heading}", "", text, *lines, ""))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewrite(file.read_text(encoding="utf-8")), encoding="utf-8")
