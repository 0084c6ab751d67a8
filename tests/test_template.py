"""What `specdec plugins new` makes works unmodified: installed in an environment of its own, linted, typed, tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specdec_core.cli import new
from specdec_testing.commands import run_specdec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
from clean_environments import Environment  # noqa: E402

KINDS = tuple(new.KINDS)


def made(kind, parent, name="near_by"):
    done = run_specdec("plugins", "new", name, "--kind", kind, "--path", str(parent))
    assert done.returncode == 0, done.stderr
    return parent / f"specdec-plugin-{name.replace('_', '-')}"


def tool(folder, *command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["x", "near_by", "a_name_as_long_as_a_name_is_allowed_to_be"[:40]])
def test_it_is_formatted_as_this_house_is(kind, name, tmp_path):
    folder = made(kind, tmp_path, name)
    tool(folder, "ruff", "check", "--no-cache", ".")
    tool(folder, "ruff", "format", "--no-cache", "--check", ".")


def test_its_settings_of_ruff_are_those_of_this_house():
    tomllib = pytest.importorskip("tomllib")
    text = dict((str(path), text) for path, text in new.rendered("head", new.values_of("near_by", "head")))
    own = tomllib.loads(text["pyproject.toml"])["tool"]["ruff"]
    house = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert (own["line-length"], own["lint"]["select"]) == (house["line-length"], house["lint"]["select"])
    assert own["lint"]["ignore"] == house["lint"]["ignore"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_passes_its_own_tests_where_it_is_installed(kind, tmp_path):
    folder = made(kind, tmp_path)
    environment = Environment(tmp_path / "environment")
    environment.install(folder)
    done = environment.run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "xfailed" not in done.stdout
    listed = environment.run("python", "-m", "specdec_core", "plugins", "list", cwd=folder)
    assert "near_by" in listed.stdout, listed.stdout + listed.stderr
    tool(folder, "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), "src")
