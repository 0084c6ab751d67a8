"""`specdec plugins new` makes a whole distribution or nothing, and explains what is wrong in one error."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

import specdec_core
from specdec_core.cli import new
from specdec_testing.commands import run_specdec

KINDS = tuple(new.KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_rendered_and_no_placeholder_is_left(kind, tmp_path):
    done = run_specdec("plugins", "new", "near_by", "--kind", kind, "--path", str(tmp_path))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "specdec-plugin-near-by"
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    package = "src/specdec_plugin_near_by"
    assert {"README.md", "pyproject.toml", ".gitignore", ".github/workflows/tests.yml"} <= files
    assert {f"{package}/{name}" for name in ("plugin.py", "options.py", "py.typed", "kernels/numba.py")} <= files
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in files}
    assert not [name for name, text in texts.items() if "$" in text and not name.endswith("tests.yml")]
    assert "${{ matrix.python }}" in texts[".github/workflows/tests.yml"]
    assert all(f'"near_by_{new.KINDS[kind].op}.{form}"' in texts["pyproject.toml"] for form in ("numba", "reference"))
    compile(texts[f"{package}/plugin.py"], "plugin.py", "exec")


@pytest.mark.parametrize("kind", KINDS)
def test_the_ranges_admit_this_core_and_not_the_next_minor_release(kind):
    tomllib = pytest.importorskip("tomllib")
    texts = {str(path): text for path, text in new.rendered(kind, new.values_of("near_by", kind))}
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    needed = {r.name: r for r in map(Requirement, project["dependencies"] + project["optional-dependencies"]["test"])}
    major, minor = specdec_core.__version__.split(".")[:2]
    for name in ("specdec-core", "specdec-nn", "specdec-testing", "specdec-engine"):
        assert needed[name].specifier.contains(specdec_core.__version__, prereleases=True)
        assert not needed[name].specifier.contains(f"{major}.{int(minor) + 1}.0")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Near-By", "'near_by' would do"),
        ("near__by", "'near_by' would do"),
        ("2nd", "'nd' would do"),
        ("", "a letter first"),
        ("../up", "'up' would do"),
        ("x" * 41, "at most 40"),
        ("suffix", "specdec-plugin-suffix is installed and has the method 'suffix'"),
    ],
)
def test_a_bad_name_is_one_error_and_leaves_nothing(name, words, tmp_path):
    done = run_specdec("plugins", "new", name, "--kind", "tree", "--path", str(tmp_path))
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_and_a_missing_folder_are_named(tmp_path):
    done = run_specdec("plugins", "new", "near_by", "--kind", "heads", "--path", str(tmp_path))
    assert done.returncode == 2 and "--kind lookup, head, tree" in done.stderr
    done = run_specdec("plugins", "new", "near_by", "--kind", "head", "--path", str(tmp_path / "no"))
    assert done.returncode == 2 and "no folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_is(tmp_path):
    folder = tmp_path / "specdec-plugin-near-by"
    folder.mkdir()
    done = run_specdec("plugins", "new", "near_by", "--kind", "lookup", "--path", str(tmp_path))
    assert done.returncode == 2 and "exists" in done.stderr
    assert list(folder.iterdir()) == [] and list(tmp_path.iterdir()) == [folder]


def test_a_write_that_fails_leaves_nothing_half_made(tmp_path, monkeypatch):
    def breaks(kind, values):
        yield from list(rendered(kind, values))[:3]
        raise OSError(28, "No space left on device")

    rendered = new.rendered
    monkeypatch.setattr(new, "rendered", breaks)
    done = run_specdec("plugins", "new", "near_by", "--kind", "lookup", "--path", str(tmp_path))
    assert done.returncode == 2 and "No space left on device" in done.stderr
    assert list(tmp_path.iterdir()) == []
