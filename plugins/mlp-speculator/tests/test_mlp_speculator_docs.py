"""The page of the method: its options, its spellings of keys and its figures are those of the code."""

from __future__ import annotations

import json
from pathlib import Path

from specdec_core.config.padding import PADDING
from specdec_plugin_mlp_speculator.options import MlpSpeculatorOptions
from specdec_plugin_mlp_speculator.settings import SPELLINGS

PAGE = (Path(__file__).parents[3] / "docs" / "mlp_speculator.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_lists_every_option_with_its_default() -> None:
    rows = [line.strip("|").split(" | ") for line in section("Options").splitlines() if line.startswith("| `")]
    defaults = {row[0].strip(" `"): json.loads(row[1].strip("`")) for row in rows}
    assert defaults == {name: field.default for name, field in MlpSpeculatorOptions.model_fields.items()}


def test_the_page_names_every_spelling_of_a_key_but_that_of_the_width() -> None:
    text = section("Which speculators can be read")
    for key, others in SPELLINGS.items():
        if key != "emb_dim":  # read from the tensors
            assert all(f"`{name}`" in text for name in (key, *others))


def test_the_page_says_how_many_rows_are_padding() -> None:
    assert f"Up to {PADDING} rows of difference are padding" in PAGE
