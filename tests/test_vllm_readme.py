"""The README of the vLLM integration names every module once."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "integrations" / "vllm"


def test_the_table_of_modules_is_the_source():
    package = FOLDER / "src" / "specdec_vllm"
    rows = [line for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z]+)/?`", row.split("|")[1])]
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" and path.stem != "__init__"}
    there |= {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert sorted(named) == sorted(there)
    (bridge,) = (row for row in rows if row.startswith("| `bridge/`"))
    parts = {path.stem for path in (package / "bridge").glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`([a-z]+)`", bridge.split("|")[2])) == parts
