"""Reads entry points out of the metadata of installed distributions; knows nothing of conflicts or of loading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Final

import importlib_metadata

from specdec_core.registry.groups import Kind, parse_group

CORE_DISTRIBUTION: Final = "specdec-core"
KERNEL_DISTRIBUTION: Final = "specdec-nn"  # its kernels may be used whatever the method
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(?P<specifier>[^;@]*)(?:;(?P<marker>.*))?\Z"
)
_MARK: Final = "specdec."  # what every group of ours begins with; a cheap look before anything is parsed


@dataclass(frozen=True)
class Claim:
    """One entry point of one of our groups, as its distribution declares it.

    trouble   why the distribution's metadata cannot be trusted, "" if it can
    mismatch  why the distribution does not fit the running core, "" if it does
    """

    kind: Kind
    major: int
    name: str
    value: str
    distribution: str
    version: str
    trouble: str = ""
    mismatch: str = ""


def normalize(distribution: str) -> str:
    """Return the one spelling under which names of distributions are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def read_claims(path: Sequence[str | PathLike[str]] | None, core_version: str) -> Iterator[Claim]:
    """Yield the claims of every distribution on `path` (default: `sys.path`), nearest first; nothing is imported.

    A distribution found twice counts where it stands first, which is where Python would import it from. Metadata
    that cannot be read makes a claim with `trouble`, never an exception.
    """
    seen: set[str] = set()
    for distribution in _distributions(path):
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, UnicodeDecodeError):
            continue
        if _MARK not in text:
            continue
        name, version, requires, trouble = _identity(distribution)
        if normalize(name) in seen:
            continue
        seen.add(normalize(name))
        mismatch, bad = _core_mismatch(requires, core_version)
        for group, point, value in _entry_points(text):
            parsed = parse_group(group)
            if parsed is not None:
                yield Claim(*parsed, point, value, name, version, trouble or bad, mismatch)


def required_by(distribution: str) -> frozenset[str]:
    """Return the names of the distributions that an installed one requires, extras included; none if it is not here."""
    try:
        requires = importlib_metadata.requires(distribution) or ()
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return frozenset()
    return frozenset(normalize(match["name"]) for text in requires if (match := _REQUIREMENT.match(text)))


def _distributions(path: Sequence[str | PathLike[str]] | None) -> Iterable[Any]:
    if path is None:
        return importlib_metadata.distributions()
    return importlib_metadata.distributions(path=[fspath(entry) for entry in path])


def _entry_points(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and value of each line; the library's own reading may raise for a value that does not parse."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()


def _identity(distribution: Any) -> tuple[str, str, list[str], str]:
    """Return name, version, requirements and what is wrong with them."""
    try:
        headers = _headers(distribution)
        name, version = headers.get("name", [""])[0], headers.get("version", [""])[0]
        if name and version:
            return name, version, headers.get("requires-dist", []), ""
        trouble = "its METADATA names no Name or no Version"
    except Exception as error:  # METADATA missing, not text, or not the format it should be
        trouble = f"its METADATA cannot be read ({type(error).__name__}: {error})"
    return str(getattr(distribution, "_path", "unknown distribution")), "?", [], trouble


def _headers(distribution: Any) -> dict[str, list[str]]:
    """Return the header fields of METADATA, names in lower case; a mail parser would cost more than all the rest."""
    text = distribution.read_text("METADATA")
    if not text:  # an older form of metadata
        metadata = distribution.metadata
        return {
            "name": [metadata["Name"]],
            "version": [metadata["Version"]],
            "requires-dist": list(distribution.requires or ()),
        }
    headers: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line:
            break
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def _core_mismatch(requires: Iterable[str], core_version: str) -> tuple[str, str]:
    """Return (why the requirements do not allow this core, why they cannot be read), "" where there is nothing."""
    for text in requires:
        match = _REQUIREMENT.match(text)
        if match is None or normalize(match["name"]) != CORE_DISTRIBUTION:
            continue
        from packaging.specifiers import InvalidSpecifier, SpecifierSet  # costs 5 ms, and many listings need it not

        try:
            specifier = SpecifierSet(match["specifier"].strip().removeprefix("(").removesuffix(")"))
            applies = not match["marker"] or _applies(match["marker"])
        except (InvalidSpecifier, ValueError):
            return "", f"its requirement {text!r} does not parse"
        if applies and not specifier.contains(core_version, prereleases=True):
            return f"it needs {CORE_DISTRIBUTION}{specifier}, and this is {core_version}", ""
    return "", ""


def _applies(marker: str) -> bool:
    """Evaluate an environment marker as for an installation without extras."""
    from packaging.markers import Marker

    return Marker(marker).evaluate({"extra": ""})
