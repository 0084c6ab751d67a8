"""The page of the method: its options and its names of trees are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from specdec_core.config.padding import PADDING
from specdec_nn.drafters.published_trees import NAMES, named
from specdec_plugin_medusa.options import MedusaOptions

PAGE = (Path(__file__).parents[3] / "docs" / "medusa.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_lists_every_option_with_its_default() -> None:
    rows = [line.strip("|").split(" | ") for line in section("Options").splitlines() if line.startswith("| `")]
    defaults = {row[0].strip(" `"): json.loads(row[1].strip("`")) for row in rows}
    assert defaults == {name: field.default for name, field in MedusaOptions.model_fields.items()}


def test_the_page_names_every_tree_and_the_heads_that_they_need() -> None:
    text = section("Chains and trees").rpartition("\n\n")[2]
    assert tuple(name for name in re.findall(r"`(\w+)`", text)) == NAMES
    shallow = [name for name in NAMES if max(map(len, named(name) or ())) == 3]
    assert re.findall(r"`(\w+)`\s\(3 heads\)", text) == shallow
    assert "63 nodes each, for 4 heads" in text


def test_the_page_says_how_many_rows_are_padding() -> None:
    assert f"Up to {PADDING} rows of difference are padding" in PAGE
