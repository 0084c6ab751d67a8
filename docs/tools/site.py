"""What MkDocs is told besides mkdocs.yml: pages outside docs/ are on the site as well, and links lead to them there.

A link to a file of the repository that is no page of the site is shown as its text alone.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
# Files outside docs/, and the pages that they are.
OUTSIDE = {
    "README.md": "repository/readme.md",
    "CONTRIBUTING.md": "repository/contributing.md",
    "CHANGELOG.md": "repository/changelog.md",
    "benchmarks/README.md": "repository/benchmarks.md",
    "demo/README.md": "repository/demo.md",
}
PLACES = {page: file for file, page in OUTSIDE.items()}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/."""
    from mkdocs.structure.files import File

    for file, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at the pages of the site; fences stay as they are."""
    place = PLACES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    known = {file.src_uri for file in files}
    return "".join(part if part.startswith("```") else relink(part, place, known) for part in parts)


def relink(text: str, place: str, known: set[str]) -> str:
    """Return Markdown with the links of a file, which is at `place` in the repository, led to pages in `known`."""

    def led(found: re.Match[str]) -> str:
        shown, target, anchor = found[1], found[2], found[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        file = normpath(f"{PurePosixPath(place).parent}/{target}")
        page = OUTSIDE.get(file, file.removeprefix("docs/"))
        if page not in known:
            return shown
        here = OUTSIDE.get(place, place.removeprefix("docs/"))
        return f"[{shown}]({relpath(page, str(PurePosixPath(here).parent))}{anchor})"

    return LINK.sub(led, text)
