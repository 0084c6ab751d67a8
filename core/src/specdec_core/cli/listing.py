"""`specdec plugins list`, and tables as plain text; imports nothing but the catalog, so that a listing is quick."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from specdec_core.cli.output import emit
from specdec_core.registry.catalog import Catalog, Record
from specdec_core.registry.groups import Kind

HEADINGS = ("name", "kind", "distribution", "version", "status")
SHOWN: Final[tuple[Kind, ...]] = ("proposer", "verifier", "draft")  # what a configuration chooses from
PLURALS: Final[dict[Kind, str]] = {"alias": "aliases"}


def list_plugins(as_json: bool, everything: bool = False, catalog: Catalog | None = None) -> int:
    """Print the installed methods, verifiers and drafts, as a table or as a JSON list of objects; imports no plugin.

    With `everything`, kernels, aliases, extensions and commands as well; without, the table ends with their number.
    """
    records = (catalog or Catalog.discover()).records
    shown = [record for record in records if everything or record.kind in SHOWN]
    if as_json:
        emit(json.dumps([_data(record) for record in shown], indent=1))
        return 0
    if shown:
        data = (_data(record) for record in shown)
        print_table(HEADINGS, ([_cell(each, heading) for heading in HEADINGS] for each in data))
    else:
        print(
            "no method, no verifier and no draft is installed"
            if records
            else "nothing is installed that offers a plugin"
        )
    if len(shown) < len(records):
        print(_left_out([record for record in records if record.kind not in SHOWN]))
    return 0


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns; the last one is not padded and may be long."""
    lines = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _data(record: Record) -> dict[str, Any]:
    """Return a record as plain data; a usable draft's with its card, a small file beside its weights."""
    if record.kind != "draft" or record.status not in ("ok", "conflict"):
        return record.as_json()
    from specdec_core.registry.drafts import described

    found = described(record)
    wrong = {"status": "invalid", "reason": found["problem"]} if "problem" in found and record.status == "ok" else {}
    return {**record.as_json(), **found, **wrong}


def _cell(record: dict[str, Any], heading: str) -> str:
    reason = record.get("reason") or (f"{record['method']} for {record['target']}" if "target" in record else "")
    return f"{record[heading]}: {reason}" if heading == "status" and reason else record[heading]


def _left_out(records: Sequence[Record]) -> str:
    counts = Counter(record.kind for record in records)
    named = [f"{n} {kind if n == 1 else PLURALS.get(kind, kind + 's')}" for kind, n in counts.items()]
    unusable = sum(record.status != "ok" for record in records)
    return f"not listed: {', '.join(named)}{f' ({unusable} unusable)' if unusable else ''}; --all lists them, too"
