"""`specdec plugins new`: renders the template of a kind of method into a distribution of its own; imports no plugin.

The files are under `specdec_core/template`: those of `common` and those of the kind, each a `string.Template`. A folder
called `package` gets the name of the import package, `dot_` at the front of a name becomes a dot, `.tmpl` is dropped.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from packaging.version import Version

import specdec_core
from specdec_core.errors import ConfigError
from specdec_core.registry.catalog import Catalog

if TYPE_CHECKING:
    from importlib.abc import Traversable

NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LONGEST: Final = 40
ENDING: Final = ".tmpl"


@dataclass(frozen=True)
class Kind:
    """What differs from kind to kind, the files apart.

    summary       one line on the method
    op            its kernel is the op `NAME_op`
    dependencies  requirements besides specdec-core and specdec-nn
    """

    summary: str
    op: str
    dependencies: tuple[str, ...]


KINDS: Final = {
    "lookup": Kind(
        "Drafts what followed the end of the text where it occurred before", "find", ("numba>=0.60", "numpy>=1.26")
    ),
    "head": Kind(
        "Drafts with heads over the target's last hidden state",
        "step",
        ("numba>=0.60", "numpy>=1.26", "torch>=2.13"),
    ),
    "tree": Kind(
        "Drafts a tree of what followed the newest id at several earlier places",
        "grow",
        ("numba>=0.60", "numpy>=1.26"),
    ),
}


def new(catalog: Catalog, name: str, kind: str, parent: Path) -> None:
    """Write the distribution `specdec-plugin-NAME` into a folder of that name below `parent`, and say what comes next.

    Raises ConfigError for a name or kind that is invalid, a name that is installed, a `parent` that is no
    folder, and for a folder that exists; nothing is left behind then.
    """
    if kind not in KINDS:
        message = f"there is no kind {kind!r} of template; give --kind {', '.join(KINDS)}"
        raise ConfigError(message)
    _check_name(catalog, name)
    values = values_of(name, kind)
    folder = parent / values["distribution"]
    if not parent.is_dir():
        message = f"{str(parent)!r} is no folder; make it first, or give another --path"
        raise ConfigError(message)
    if folder.exists() or folder.is_symlink():
        message = f"{str(folder)!r} exists; remove it, choose another name, or give another --path"
        raise ConfigError(message)
    try:
        count = _write(folder, kind, values)
    except OSError as error:
        message = f"{str(folder)!r} could not be written: {error}"
        raise ConfigError(message) from error
    print(f"made {folder}: {count} files of a {kind} method\n")
    print("next:")
    for command in (f"cd {folder}", 'pip install -e ".[test]"', "python -m pytest", f"specdec plugins show {name}"):
        print(f"  {command}")


def values_of(name: str, kind: str) -> dict[str, str]:
    """Return what the placeholders of the template stand for."""
    core, chosen = Version(specdec_core.__version__), KINDS[kind]
    within = f">={core.major}.{core.minor},<{core.major}.{core.minor + 1}"
    needed = sorted([f"specdec-core{within}", f"specdec-nn{within}", *chosen.dependencies])
    return {
        "name": name,
        "distribution": f"specdec-plugin-{name.replace('_', '-')}",
        "package": f"specdec_plugin_{name}",
        "summary": chosen.summary,
        "op": chosen.op,
        "range": within,
        "dependencies": "\n".join(f'  "{requirement}",' for requirement in needed),
    }


def rendered(kind: str, values: dict[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield the relative path and the text of each file."""
    root = files("specdec_core") / "template"
    for part in ("common", kind):
        for path, file in _walk(root / part, Path()):
            yield _renamed(path, values["package"]), Template(file.read_text(encoding="utf-8")).substitute(values)


def _check_name(catalog: Catalog, name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")[:LONGEST].strip("_")
        hint = f"; {near!r} would do" if NAME.fullmatch(near) else ""
        rule = f"lower-case letters, digits and single underscores, a letter first, at most {LONGEST} characters"
        message = f"{name!r} is no name of a method: {rule}{hint}"
        raise ConfigError(message)
    owners = [record.distribution for record in catalog.of_kind("proposer") if record.name == name]
    if owners:
        message = f"{owners[0]} is installed and has the method {name!r}; a name has one owner, so take another"
        raise ConfigError(message)


def _write(folder: Path, kind: str, values: dict[str, str]) -> int:
    """Write all files beside the place where they belong and move them there at once; return how many there are."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    made, count = scratch / folder.name, 0
    try:
        for path, text in rendered(kind, values):
            file = made / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
            count += 1
        made.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return count


def _walk(folder: Traversable, below: Path) -> Iterator[tuple[Path, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, below / entry.name)
        elif entry.name.endswith(ENDING):
            yield below / entry.name.removesuffix(ENDING), entry


def _renamed(path: Path, package: str) -> Path:
    parts = [package if part == "package" else part for part in path.parts]
    return Path(*(f".{part[4:]}" if part.startswith("dot_") else part for part in parts))
