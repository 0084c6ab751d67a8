"""The ranges in the metadata are those that `make test-versions` tries, and the page of compatibility has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
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
    assert f"$(call found,python{found[1]})" in MAKEFILE and f"$(call found,python{PAGE['Python'][1]})" in MAKEFILE


def test_the_page_has_both_ends() -> None:
    tried = oldest_tried()
    assert {name.lower(): row[1] for name, row in PAGE.items() if name != "Python"} == NEWEST
    for name, version in tried.items():
        assert (version + ".").startswith(PAGE[name][0] + "."), name


def test_a_python_that_is_found_and_does_not_run_is_not_taken(tmp_path: Path) -> None:
    """Version managers put a stand-in for every version that they know of on the path."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    stand_in, runs = tmp_path / "python3.10", tmp_path / "python3.13"
    stand_in.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    runs.write_text("#!/bin/sh\nexit 0\n")
    for program in (stand_in, runs):
        program.chmod(0o755)
    command = ["make", "-s", "PYTHON=mine", "--eval", "shown: ; @echo $(OLDEST_PYTHON) $(NEWEST_PYTHON)", "shown"]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["mine", str(runs)]
