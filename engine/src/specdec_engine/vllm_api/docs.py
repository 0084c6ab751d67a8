"""Writes the tables of docs/vllm-scripts.md out of `specdec_engine.vllm_api.arguments`.

`python -m specdec_engine.vllm_api.docs docs/vllm-scripts.md` rewrites what stands between the marks in the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from specdec_core.config.keys import Refused
from specdec_engine.vllm_api.arguments import ARGUMENTS, CALL_ARGUMENTS, METHODS, Honoured, NoEffect

BEGIN: Final = "<!-- {}, written by: python -m specdec_engine.vllm_api.docs docs/vllm-scripts.md -->\n"
END: Final = "<!-- end of {} -->\n"


def rewrite(page: str) -> str:
    """Return a page with the tables between its marks as the code has them; ValueError if a mark is missing."""
    tables = {
        "arguments": _table(("argument", "here", "why, and what to do"), map(_argument, ARGUMENTS.items())),
        "calls": _table(("argument", "here", "why, and what to do"), map(_argument, CALL_ARGUMENTS.items())),
        "methods": _table(("method", "here", "what it does, or what to use"), map(_method, METHODS.items())),
    }
    for name, text in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            message = f"the page lacks a line {begin.strip()!r} or {end.strip()!r}"
            raise ValueError(message)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def _argument(item: tuple[str, Any]) -> tuple[str, str, str]:
    name, known = item
    if isinstance(known, Honoured):
        return f"`{name}`", "honoured", known.meaning
    if isinstance(known, NoEffect):
        return f"`{name}`", "accepted, no effect", known.reason
    assert isinstance(known, Refused)
    values = " or ".join(f"`{value!r}`" for value in known.harmless)
    step = "" if known.step == "leave it out" else f"; {known.step}"
    return f"`{name}`", f"only {values}", f"{known.reason}{step}"


def _method(item: tuple[str, Any]) -> tuple[str, str, str]:
    name, known = item
    if isinstance(known, Honoured):
        return f"`{name}`", "yes", known.meaning
    return f"`{name}`", "no", known.reason


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(rewrite(file.read_text(encoding="utf-8")), encoding="utf-8")
