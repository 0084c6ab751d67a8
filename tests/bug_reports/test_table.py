"""The table in docs/bug-reports.md is complete, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "bug-reports.md"
ROWS = list(range(1, 112))


def rows() -> dict[int, str]:
    found: dict[int, str] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"\| (\d+) \| [^|]+ \| (.+) \|", line)
        if match:
            assert int(match[1]) not in found, line
            found[int(match[1])] = match[2]
    return found


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_has_a_test_or_says_what_it_waits_for() -> None:
    assert list(rows()) == ROWS
    for row, text in rows().items():
        assert "::test_" in text or text.startswith("later: needs "), row


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for row, text in rows().items():
        file = ""
        for named in re.findall(r"([\w/.-]*)::(test_\w+)", text):
            file = named[0] or file
            if named[1] not in names_in(file):
                missing.append(f"row {row}: {file}::{named[1]}")
    assert missing == []


def test_every_test_named_after_a_row_is_in_that_row() -> None:
    table = rows()
    for file in sorted(Path(__file__).parent.glob("test_*_rows.py")):
        for name in names_in(str(file.relative_to(ROOT))):
            match = re.search(r"_rows?_(\d+)(?:_and_(\d+))?$", name)
            if name.startswith("test_"):
                assert match, name
                for row in filter(None, match.groups()):
                    assert name in table[int(row)], name
