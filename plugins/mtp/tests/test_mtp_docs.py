"""The page of the method: its tables are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from specdec_plugin_mtp.families import FAMILIES, HYBRID, NO_CLASS, NOT_BUILT, NOT_STUDIED
from specdec_plugin_mtp.family import Family
from specdec_plugin_mtp.options import MtpOptions

PAGE = Path(__file__).parents[3] / "docs" / "mtp.md"
SHORT = {
    NO_CLASS: "no: no class in transformers",
    NOT_STUDIED: "no: not studied",
    NOT_BUILT: "no: not built yet",
    HYBRID: "no: recurrent layers in the target",
}


def table(heading: str) -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def row_of(family: Family) -> list[str]:
    kinds = [f"`{name}`" for name in (*family.types, *family.architectures, family.among) if name]
    kinds += [f"contains `{family.contains}`"] if family.contains else []
    keys = " or ".join(dict.fromkeys(f"`{path.removeprefix('text.')}`" for path in family.counts))
    default = "" if family.default is None else f", else {family.default}" if keys else str(family.default)
    answer = SHORT.get(family.why_not, f"no: {family.why_not.partition(':')[0]}") if family.why_not else "yes"
    return [family.title, ", ".join(kinds), f"{keys}{default}" or "-", answer]


def test_the_page_lists_every_family_as_the_table_has_it() -> None:
    assert table("Families") == [row_of(family) for family in FAMILIES]


def test_the_page_lists_every_option_with_its_default() -> None:
    defaults = {row[0].strip("`"): json.loads(row[1].strip("`")) for row in table("Options")}
    assert defaults == {name: field.default for name, field in MtpOptions.model_fields.items()}


def test_no_number_of_families_in_the_text_is_out_of_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    said = re.search(r"(\d+) families, of which (\d+) draft", text)
    assert said is not None
    assert (int(said[1]), int(said[2])) == (len(FAMILIES), sum(not family.why_not for family in FAMILIES))
