"""Ends with an error if a built site would load anything from the network: `python docs/tools/offline.py site`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# What a browser loads by itself; a link that a reader may follow is none of these.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon))[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]+"""
)
IMPORTED = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//[^"')\s]+""")


def loaded(folder: Path) -> list[str]:
    """Return what the pages and style sheets of a folder load from elsewhere, with the file that does."""
    found = []
    for file in sorted(folder.rglob("*")):
        pattern = {".html": LOADED, ".css": IMPORTED}.get(file.suffix)
        if pattern is not None:
            text = file.read_text(encoding="utf-8")
            found += [f"{file.relative_to(folder)}: {match[0][:160]}" for match in pattern.finditer(text)]
    return found


if __name__ == "__main__":
    problems = loaded(Path(sys.argv[1]))
    if problems:
        raise SystemExit("the site loads from the network:\n" + "\n".join(problems))
    print("the site loads nothing from the network")
