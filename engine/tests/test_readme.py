"""The README's extras are those of the distribution, and each method in this repository is one or comes along."""

from __future__ import annotations

import re
from pathlib import Path

ENGINE = Path(__file__).parent.parent
PROJECT = (ENGINE / "pyproject.toml").read_text(encoding="utf-8")
README = (ENGINE / "README.md").read_text(encoding="utf-8")


def extras() -> dict[str, str]:
    """Return what each extra brings, by its name."""
    section = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return dict(re.findall(r"^([\w-]+) = (.*?)(?=^[\w-]+ = |\Z)", section, re.MULTILINE | re.DOTALL))


def test_the_readme_names_every_extra_and_no_other() -> None:
    methods = README.partition("other methods are extras: ")[2].partition("\n\n")[0]
    further = README.partition("Further extras: ")[2].partition("\n\n")[0]
    assert sorted({*re.findall(r"`([\w-]+)`", methods), *re.findall(r"`([\w-]+)` \(", further)}) == sorted(extras())


def test_every_method_comes_along_or_is_an_extra_and_in_all() -> None:
    here = {folder.parent.name for folder in ENGINE.parent.glob("plugins/*/pyproject.toml")}
    brought = set(re.findall(r'"specdec-plugin-([\w-]+)>', PROJECT.partition("[project.optional-dependencies]")[0]))
    (in_all,) = re.findall(r"specdec-engine\[([\w,-]+)\]", extras()["all"])
    assert brought | set(in_all.split(",")) == here
    assert set(in_all.split(",")) <= set(extras())
