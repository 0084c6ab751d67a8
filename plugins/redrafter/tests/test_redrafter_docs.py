"""The page of the method: its options are those of the code, and so are its figures."""

from __future__ import annotations

import json
from pathlib import Path

from specdec_core.config.padding import PADDING
from specdec_plugin_redrafter.options import DEPTH, KEPT, RedrafterOptions

PAGE = (Path(__file__).parents[3] / "docs" / "redrafter.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_lists_every_option_with_its_default() -> None:
    rows = [line.strip("|").split(" | ") for line in section("Options").splitlines() if line.startswith("| `")]
    defaults = {row[0].strip(" `"): json.loads(row[1].strip("`")) for row in rows}
    assert defaults == {name: field.default for name, field in RedrafterOptions.model_fields.items()}


def test_the_page_has_the_codes_figures() -> None:
    assert f"Up to {PADDING} rows of difference are padding" in PAGE
    assert f"Each beam goes on with its {KEPT} likeliest ids" in PAGE
    assert f"k is {DEPTH} if it is left out" in PAGE
