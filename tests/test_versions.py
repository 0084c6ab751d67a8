"""The ranges in the metadata are those that `make test-versions` tries, and the page of compatibility has them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from specdec_core.registry.tried import NEWEST

sys.path.insert(0, str(Path(__file__).parent))
from doc_pages import table

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECTS = [
    project for pattern in ("*", "plugins/*", "integrations/*") for project in ROOT.glob(f"{pattern}/pyproject.toml")
]
PAGE = {row[0]: row[1:] for row in table(ROOT / "docs" / "compatibility.md", "Versions that are tried")}


def oldest_tried() -> dict[str, str]:
    releases = re.search(r"OLDEST_VENV.*RELEASES := (.*)", MAKEFILE)
    torch = re.search(r"TRIED_TORCH := (.*)", MAKEFILE)
    assert releases is not None and torch is not None
    return {**dict(each.split("==") for each in releases[1].split()), "torch": torch[1]}


def requirements(project: Path) -> list[Requirement]:
    return [
        Requirement(text) for text in re.findall(r'"([a-z][\w-]*(?:\[\w,-]+\])?[<>=!~][^"]*)"', project.read_text())
    ]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.parent.name)
def test_a_lower_bound_is_the_oldest_release_that_is_tried(project: Path) -> None:
    tried = oldest_tried()
    for requirement in requirements(project):
        if requirement.name in tried:
            (lower,) = [each.version for each in requirement.specifier if each.operator == ">="]
            assert (tried[requirement.name] + ".").startswith(lower + "."), str(requirement)


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.parent.name)
def test_the_oldest_python_is_the_one_that_is_tried(project: Path) -> None:
    found = re.search(r'requires-python = ">=([\d.]+)"', project.read_text(encoding="utf-8"))
    assert found is not None and found[1] == PAGE["Python"][0]
    assert f"command -v python{found[1]})" in MAKEFILE and f"command -v python{PAGE['Python'][1]})" in MAKEFILE


def test_the_page_has_both_ends() -> None:
    tried = oldest_tried()
    assert {name.lower(): row[1] for name, row in PAGE.items() if name != "Python"} == NEWEST
    for name, version in tried.items():
        assert (version + ".").startswith(PAGE[name][0] + "."), name
