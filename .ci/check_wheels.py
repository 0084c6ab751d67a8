"""Proves that the wheels of a folder are whole: what is in them, and that an environment of nothing else runs them.

The environment has the wheels and, as links, the third-party packages that they declare, with what those need; no
source of this repository and no package that no wheel asks for. So a module, a marker, an entry point or a requirement
that is missing shows, and nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = {word: i for i, word in enumerate(["<unk>", "the", "cat", "sat", "on", "mat"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(sys.argv[1])
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=len(words), max_position_embeddings=256, eos_token_id=None, **sizes)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""
# Every entry point must load; an alias is never loaded, and kernels of Triton need a package that an extra brings.
LOAD = """
import importlib.metadata, pathlib, sys

site = pathlib.Path(sys.argv[1])
for found in importlib.metadata.distributions():
    for point in found.entry_points:
        named_only = point.group.startswith("specdec.aliases.") or point.name.endswith(".triton")
        if point.group.startswith("specdec.") and not named_only:
            point.load()
ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0].startswith("specdec")}
strange = [name for name, m in ours.items() if m.__file__ and site not in pathlib.Path(m.__file__).parents]
sys.exit(f"not from the wheels: {strange}" if strange or not ours else 0)
"""
# Distribution and import package are named alike, so that an import tells which distribution it needs.
IMPORTED = r"^ *(?:from|import) (specdec_\w+)"
LICENCE = Path(__file__).resolve().parents[1] / "LICENSE"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


class Wheel:
    """One wheel: its file names, metadata and declared entry points."""

    def __init__(self, file: Path) -> None:
        """Read it."""
        self.file = file
        with zipfile.ZipFile(file) as archive:
            self.names = {name for name in archive.namelist() if not name.endswith("/")}
            info = next(name for name in self.names if name.endswith(".dist-info/METADATA"))
            self.metadata: Message = Parser().parsestr(archive.read(info).decode())
            points = info.replace("METADATA", "entry_points.txt")
            self.entry_points = archive.read(points).decode() if points in self.names else ""
            licence = info.replace("METADATA", "licenses/LICENSE")
            self.licence = archive.read(licence) if licence in self.names else b""
            code = b"\n".join(archive.read(name) for name in self.names if name.endswith(".py")).decode()
            self.imports = {canonicalize_name(name) for name in re.findall(IMPORTED, code, re.MULTILINE)}

    @property
    def name(self) -> str:
        """The distribution's name."""
        return canonicalize_name(str(self.metadata["Name"]))

    def problems(self, project: Path) -> Iterator[str]:
        """Yield what is wrong with it, compared with the project's folder."""
        sources = project / "src"
        expected = {str(file.relative_to(sources)) for file in sources.rglob("*") if file.is_file()}
        expected = {name for name in expected if "__pycache__" not in name and not name.endswith(".pyc")}
        found = {name for name in self.names if ".dist-info/" not in name}
        if expected != found:
            yield f"files missing {sorted(expected - found)}, files too many {sorted(found - expected)}"
        packages = {name.partition("/")[0] for name in found}
        if {f"{package}/py.typed" for package in packages} - found:
            yield "no py.typed"
        code = [name for name in found if not name.endswith(".tmpl")]  # of a template the tests belong in it
        if any(part == "tests" or part.startswith(("test_", "conftest")) for name in code for part in name.split("/")):
            yield "tests inside"
        yield from self.presentation(project)
        declared = (project / "pyproject.toml").read_text(encoding="utf-8").count("[project.entry-points")
        if self.entry_points.count("[") - ("[console_scripts]" in self.entry_points) != declared:
            yield f"{declared} groups of entry points are declared, and the wheel has: {self.entry_points!r}"

    def presentation(self, project: Path) -> Iterator[str]:
        """Yield what an index could not show: licence, long description, authors, keywords, classifiers."""
        if self.metadata["License-Expression"] != "Apache-2.0":
            yield "no License-Expression: Apache-2.0"
        if self.licence != LICENCE.read_bytes():
            yield "no LICENSE, or not that of the repository"
        readme = (project / "README.md").read_text(encoding="utf-8")
        if self.metadata["Description-Content-Type"] != "text/markdown" or str(self.metadata.get_payload()) != readme:
            yield "the long description is not its README.md"
        for header in ("Summary", "Author", "Keywords", "Classifier"):
            if not self.metadata[header]:
                yield f"no {header}"

    def requirements(self) -> list[Requirement]:
        """Return what it declares to need, that of its extras included."""
        return [Requirement(text) for text in self.metadata.get_all("Requires-Dist") or []]

    def undeclared(self) -> set[str]:
        """Return distributions of ours that its modules import and that it declares not to need."""
        declared = {canonicalize_name(r.name) for r in self.requirements() if r.marker is None}
        return self.imports - declared - {self.name}


def disagreements(wheels: dict[str, Wheel]) -> Iterator[str]:
    """Yield requirements that cannot be met together: on versions of ours that are not these, or on unequal ranges."""
    ranges = defaultdict(set)
    for wheel in wheels.values():
        for requirement in wheel.requirements():
            name = canonicalize_name(requirement.name)
            if name == wheel.name:
                continue  # an extra made of other extras
            ranges[name].add(str(requirement.specifier))
            if name in wheels:
                version = wheels[name].metadata["Version"]
                if not requirement.specifier or not requirement.specifier.contains(version, prereleases=True):
                    yield f"{wheel.name} needs {requirement}, and here {name} is {version}"
            elif name.startswith("specdec-"):
                yield f"{wheel.name} needs {requirement}, which is not among the wheels"
        yield from (f"{wheel.name} imports {name} and declares no need of it" for name in sorted(wheel.undeclared()))
    for name, found in ranges.items():
        if len(found) > 1:
            yield f"unequal ranges of {name}: {', '.join(sorted(found))}"


def closure(requirements: Iterable[Requirement], ours: dict[str, Wheel]) -> set[str]:
    """Return the names of all third-party distributions that are needed, as they are installed here."""
    todo, seen, found = list(requirements), set(), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name in ours:
                needed = ours[name].metadata.get_all("Requires-Dist") or []
            else:
                try:
                    needed = distribution(name).requires or []
                except PackageNotFoundError:
                    continue  # pip says so when it installs the wheels
                found.add(name)
            parsed = (Requirement(text) for text in needed)
            todo += [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


def link(names: Iterable[str], folder: Path) -> None:
    """Link the files of installed distributions into a folder."""
    folder.mkdir()
    for name in sorted(names):
        found = distribution(name)
        for top in {Path(file).parts[0] for file in found.files or () if not str(file).startswith("..")}:
            source = Path(str(found.locate_file(top)))
            if not (folder / top).exists() and source.exists() and top != "__pycache__":
                (folder / top).symlink_to(source)


def environment(folder: Path, wheels: dict[str, Wheel]) -> Path:
    """Make an environment with the wheels and what they need; return its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    link(closure([Requirement(name) for name in wheels], wheels), folder / "third_party")
    (site_packages(programs) / "third_party.pth").write_text(f"{folder / 'third_party'}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python")]
    files = [str(wheel.file) for wheel in wheels.values()]
    run([*pip, "install", "--quiet", "--no-index", *files])
    return programs


def site_packages(programs: Path) -> Path:
    """Return where an environment keeps its packages."""
    asked = [str(programs / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(run(asked).strip())


def run(command: list[str], cwd: Path | None = None, more: dict[str, str] | None = None) -> str:
    """Run a command without anything of this repository in its environment; return what it prints."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "SPECDEC"))}
    ours = {"HF_HUB_OFFLINE": "1", "SPECDEC_KERNELS": "reference", **(more or {})}
    done = subprocess.run(command, env={**clean, **ours}, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(condition: bool, message: str) -> None:
    """End with a message unless the condition holds."""
    if not condition:
        raise SystemExit(message)


def try_out(programs: Path, folder: Path, wheels: dict[str, Wheel]) -> None:
    """Run what a user would run first."""
    python, specdec = str(programs / "python"), str(programs / "specdec")
    # The tests compile kernels; here, where none are cached, that would take most of the time.
    run([python, "-c", LOAD, str(site_packages(programs))], folder, {"NUMBA_DISABLE_JIT": "1"})
    listed = run([specdec, "plugins", "list"], folder)
    for wheel in wheels.values():
        if "specdec.proposers.v1" in wheel.entry_points or "specdec.drafts.v1" in wheel.entry_points:
            check(wheel.name in listed, f"specdec plugins list does not show {wheel.name}:\n{listed}")
    run([python, "-c", MODEL, "model"], folder)
    config = json.dumps(NGRAM)
    explained = run([specdec, "explain", "--model", "model", "--speculative-config", config], folder)
    check("ngram" in explained, f"specdec explain does not name the method:\n{explained}")
    prompt = "the cat sat on the mat the cat sat on"
    asked = ["--prompt", prompt, "--max-tokens", "24", "--speculative-config", config, "--json"]
    answer = json.loads(run([specdec, "generate", "model", *asked], folder))
    check(len(answer["token_ids"]) == 24 and answer["metrics"]["drafted"] > 0, f"specdec generate: {answer}")


def main() -> None:
    """Check the wheels in a folder against the projects that they were built from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, help="folder of the wheels")
    parser.add_argument("projects", type=Path, nargs="+", help="folders of the projects")
    arguments = parser.parse_args()
    found = [Wheel(file) for file in sorted(arguments.wheels.resolve().glob("*.whl"))]
    wheels = {wheel.name: wheel for wheel in found}
    check(len(wheels) == len(found) == len(arguments.projects), f"{len(found)} wheels, not one for each project")
    for project in arguments.projects:
        package = next(project.glob("src/*/__init__.py")).parent.name
        wheel = wheels[next(name for name in wheels if wheels_package(wheels[name]) == package)]
        problems = list(wheel.problems(project))
        check(not problems, f"{wheel.file.name}: {'; '.join(problems)}")
    problems = list(disagreements(wheels))
    check(not problems, "\n".join(problems))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        programs = environment(folder / "environment", wheels)
        try_out(programs, folder, wheels)
    print(f"{len(wheels)} wheels are whole, and run by themselves")


def wheels_package(wheel: Wheel) -> str:
    """Return the import package of a wheel."""
    return next(
        name.partition("/")[0] for name in wheel.names if name.endswith("/__init__.py") and name.count("/") == 1
    )


if __name__ == "__main__":
    main()
