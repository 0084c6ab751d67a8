"""Reads the fences, tables, headings, links and code spans of a Markdown page, as far as the pages here use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, its text, and the line of the page before its first one."""

    language: str
    text: str
    line: int

    @property
    def file(self):
        """The name of the file that the block is, from a comment in its first line; None if it is none."""
        found = re.match(r"# ([\w./-]+\.\w+)\n", self.text)
        return found[1] if found else None

    @property
    def commands(self):
        """The commands of a console block, each with the lines shown below it."""
        found = []
        for line in re.sub(r"\\\n\s*", "", self.text).splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
        return found


def fences(page: Path) -> list[Fence]:
    text = page.read_text(encoding="utf-8")
    return [Fence(found[1], found[2], text[: found.start(2)].count("\n")) for found in FENCE.finditer(text)]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    return [line.lstrip("#").strip() for line in prose(page).splitlines() if line.startswith("#")]


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next one of any level."""
    lines = prose(page).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("#") and line.lstrip("#").strip() == heading)
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("#")), len(lines))
    return "\n".join(lines[start + 1 : end])


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows of the table under a heading, without its head; `code` marks are taken off cells that are all code."""
    rows = [line for line in section(page, heading).splitlines() if line.startswith("|")][2:]
    cells = ([cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows)
    return [[cell[1:-1] if re.fullmatch("`[^`]*`", cell) else cell for cell in row] for row in cells]


def spans(text: str) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))
