"""`specdec plugins list`, and tables as plain text; imports nothing but the catalog, so that a listing is quick."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from specdec_core.cli.output import emit
from specdec_core.registry.catalog import Catalog

HEADINGS = ("name", "kind", "distribution", "version", "status")


def list_plugins(as_json: bool, catalog: Catalog | None = None) -> int:
    """Print what is installed, as a table or as a JSON list of objects; imports no plugin."""
    records = [record.as_json() for record in (catalog or Catalog.discover()).records]
    if as_json:
        emit(json.dumps(records, indent=1))
    elif records:
        print_table(HEADINGS, ([_cell(record, heading) for heading in HEADINGS] for record in records))
    else:
        print("nothing is installed that offers a plugin")
    return 0


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns; the last one is not padded and may be long."""
    lines = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(record: dict[str, str], heading: str) -> str:
    reason = record.get("reason")
    return f"{record[heading]}: {reason}" if heading == "status" and reason else record[heading]
