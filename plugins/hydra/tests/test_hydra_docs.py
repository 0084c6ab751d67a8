"""The page of the method: its options are those of the code."""

from __future__ import annotations

import json
from pathlib import Path

from specdec_core.config.padding import PADDING
from specdec_plugin_hydra.layout import KEYS, OFFSET
from specdec_plugin_hydra.options import HydraOptions

PAGE = (Path(__file__).parents[3] / "docs" / "hydra.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_lists_every_option_with_its_default() -> None:
    rows = [line.strip("|").split(" | ") for line in section("Options").splitlines() if line.startswith("| `")]
    defaults = {row[0].strip(" `"): json.loads(row[1].strip("`")) for row in rows}
    assert defaults == {name: field.default for name, field in HydraOptions.model_fields.items()}


def test_the_page_names_every_key_of_config_json_that_is_read() -> None:
    text = section("Which heads can be read")
    assert all(f"`{key}`" in text for key in (*KEYS, OFFSET, "grounded_heads"))


def test_the_page_says_how_many_rows_are_padding() -> None:
    assert f"Up to {PADDING} rows of difference are padding" in PAGE
