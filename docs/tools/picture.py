"""Draws docs/hook-order.svg from docs/hook-order.mmd: `python docs/tools/picture.py`; the site needs no script for it.

Read is the part of mermaid's flowcharts that the file uses: groups one below the other, with boxes from top to bottom.
A box is a name, and behind a colon when it is called.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
SOURCE, PICTURE = DOCS / "hook-order.mmd", DOCS / "hook-order.svg"
WIDTH, LEFT, BOX, GAP, TITLE = 760, 20, 24, 6, 28
STYLE = """<style>
text { font: 13px sans-serif; fill: #222 } .name { font-family: monospace } .title { font-weight: bold }
.group { fill: #f4f5fa; stroke: #b9bfd9 } .box { fill: #fff; stroke: #7986cb } .call { fill: #eef7ee; stroke: #81b784 }
.arrow { stroke: #666; stroke-width: 1.5; marker-end: url(#head) }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0 L8 4 L0 8 z" fill="#666"/></marker></defs>"""


def groups(text: str) -> list[tuple[str, list[str]]]:
    """Return the title and the boxes of each group, in order."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        match = re.fullmatch(r'\s*(subgraph )?\w+\["(.+)"\]', line)
        if match and match[1]:
            found.append((match[2], []))
        elif match:
            found[-1][1].append(match[2])
    return found


def draw(text: str) -> str:
    """Return the picture."""
    parts, top = [], 10
    for number, (title, boxes) in enumerate(groups(text)):
        height = TITLE + len(boxes) * (BOX + GAP) + GAP
        if number:
            parts.append(f'<line class="arrow" x1="{WIDTH / 2}" y1="{top}" x2="{WIDTH / 2}" y2="{top + 20}"/>')
            top += 22
        parts.append(f'<rect class="group" x="10" y="{top}" width="{WIDTH - 20}" height="{height}" rx="6"/>')
        parts.append(f'<text class="title" x="{LEFT}" y="{top + 19}">{escape(title)}</text>')
        for place, box in enumerate(boxes):
            parts += _box(box, top + TITLE + place * (BOX + GAP))
        top += height
    size = f'width="{WIDTH}" height="{top + 10}" viewBox="0 0 {WIDTH} {top + 10}"'
    label = 'role="img" aria-label="The order in which hooks are called"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>', STYLE, *parts, "</svg>", ""]
    return "\n".join(lines)


def _box(box: str, y: int) -> list[str]:
    name, _, when = box.partition(": ")
    kind = "box" if name.startswith("specdec_") else "call"
    shown = f'<tspan class="name">{escape(name)}</tspan>' + (f"  {escape(when)}" if when else "")
    rectangle = f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{BOX}" rx="4"/>'
    return [rectangle, f'<text x="{LEFT + 10}" y="{y + 16}" xml:space="preserve">{shown}</text>']


if __name__ == "__main__":
    PICTURE.write_text(draw(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
