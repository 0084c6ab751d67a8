"""The page of the method: its options are those of the code."""

from __future__ import annotations

import json
from pathlib import Path

from specdec_plugin_kangaroo.options import KangarooOptions

PAGE = (Path(__file__).parents[3] / "docs" / "kangaroo.md").read_text(encoding="utf-8")


def test_the_page_lists_every_option_with_its_default() -> None:
    rows = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    defaults = {row[0].strip(" `"): json.loads(row[1].strip("`")) for row in rows}
    assert defaults == {name: field.default for name, field in KangarooOptions.model_fields.items()}
