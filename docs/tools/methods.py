"""Writes docs/methods.md from the installed plugins: `python docs/tools/methods.py`; a test holds the page to them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_core.cli.main import main
from specdec_core.registry.catalog import Catalog

DOCS = Path(__file__).resolve().parent.parent
PAGE = DOCS / "methods.md"
HEAD = """# Methods

What the distributions of this repository offer: keys with their defaults, traits, layouts, papers. The page is written
from the installed plugins by `docs/tools/methods.py`; `specdec plugins show NAME` prints the same of any plugin.
Keys that every method has are in [configuration.md](configuration.md#common-keys), what the traits mean is in
[plugin-in-ten-minutes.md](plugin-in-ten-minutes.md#what-the-host-may-be-told).
"""


def page() -> str:
    """Return the page as it has to be."""
    catalog = Catalog.discover()
    parts = [HEAD]
    for kind, title in (("proposer", "Methods that draft"), ("verifier", "Verifiers"), ("extension", "Controllers")):
        records = [record for record in catalog.of_kind(kind) if (DOCS.parent / _folder(record.distribution)).is_dir()]
        parts.append(f"## {title}\n")
        for record in sorted(records, key=lambda record: record.name):
            parts += list(_section(_shown(f"{record.distribution}:{record.name}", kind)))
    return "\n".join(parts)


def _folder(distribution: str) -> str:
    return f"plugins/{distribution.removeprefix('specdec-plugin-')}"


def _shown(name: str, kind: str) -> dict[str, Any]:
    """Return what `specdec plugins show` tells of a name."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        code = main(["plugins", "show", name, "--json"])
    if code:
        message = f"specdec plugins show {name} failed"
        raise SystemExit(message)
    return next(each for each in json.loads(text.getvalue()) if each["kind"] == kind)


def _section(shown: dict[str, Any]) -> Iterator[str]:
    name, distribution = shown["name"], shown["distribution"]
    yield f"### {name}\n"
    links = [f"[{page}]({page})" for page in _own_pages(name, distribution)]
    layouts = [f"[{heading}](checkpoints.md#{_slug(heading)})" for heading in _layouts(name)]
    papers = [
        f"[arXiv {number}](https://arxiv.org/abs/{number})" for number in _papers(distribution, name, shown["kind"])
    ]
    rows = [
        ("distribution", f"`{distribution}`"),
        ("page", ", ".join(links)),
        ("layouts", ", ".join(layouts)),
        ("papers", ", ".join(papers)),
        ("traits", _traits(shown)),
        ("hooks", ", ".join(f"`{hook.removeprefix('specdec_')}`" for hook in shown.get("hooks", []))),
    ]
    yield "| what | is |\n|---|---|"
    yield "".join(f"| {what} | {text} |\n" for what, text in rows if text)
    for title in ("options", "request_options"):
        if shown.get(title):
            whose = "key" if title == "options" else "key of a request"
            yield f"| {whose} | type | default | what it is |\n|---|---|---|---|"
            yield "".join(_option(field) for field in shown[title])


def _option(field: dict[str, Any]) -> str:
    cells = (f"`{field['name']}`", f"`{_short(field['type'])}`", f"`{json.dumps(field['default'])}`")
    described = field["description"] or ""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in (*cells, described)) + " |\n"


def _short(text: str) -> str:
    """Return a type without the metadata of its checks, which print differently by version of pydantic."""
    return re.sub(r"\w+\.(\w+)", r"\1", re.sub(r", (FieldInfo|BeforeValidator|AfterValidator)\(.*\)", "", text))


def _traits(shown: dict[str, Any]) -> str:
    traits = shown.get("traits")
    if not isinstance(traits, dict):
        return "depend on draft and target; `specdec explain` shows them" if traits else ""
    from specdec_core.traits import MethodTraits

    usual = MethodTraits()
    own = {key: value for key, value in traits.items() if value != getattr(usual, key) and value != []}
    return ", ".join(f"`{key}={value}`" for key, value in own.items()) or "the defaults"


def _own_pages(name: str, distribution: str) -> list[str]:
    folder = distribution.removeprefix("specdec-plugin-").replace("-", "_")
    names = {"verifiers": "losslessness", "ngram": "configuration"}
    return [f"{each}.md" for each in (names.get(folder, folder),) if (DOCS / f"{each}.md").is_file()]


def _layouts(name: str) -> list[str]:
    """Return the headings of the page of layouts that name the method."""
    text = (DOCS / "checkpoints.md").read_text(encoding="utf-8")
    return [found for found in re.findall(r"^## (.+)$", text, re.MULTILINE) if name in re.split(r"\W+", found)]


def _papers(distribution: str, name: str, kind: str) -> list[str]:
    """Return numbers on arXiv in the rows of the page of sources that name the distribution's folder.

    Of a distribution with several verifiers, the rows of the verifier's own file.
    """
    text = (DOCS / "sources.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row.startswith("|") and f"`{_folder(distribution)}`" in row]
    if kind == "verifier":
        rows = [row for row in rows if f"`{name}.py`" in row]
    return list(dict.fromkeys(number for row in rows for number in re.findall(r"arXiv (\d{4}\.\d{4,5})", row)))


def _slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
