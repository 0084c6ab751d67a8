"""A hash of the source text of packages and modules, wherever they are imported from; it imports none of them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

SOURCE = ".py"
COMPILED = ".pyc"  # of an installation without sources


def source_hash(modules: Sequence[str]) -> str | None:
    """Return SHA-256, in hexadecimal, of the names and texts of modules, packages with all that is in them.

    None if one of them cannot be found or read.
    """
    digest = hashlib.sha256()
    try:
        for module in modules:
            count = 0
            for name, data in sorted(_texts(module)):
                digest.update(f"{module} {name} {len(data)}\n".encode())
                digest.update(data)
                count += 1
            if not count:
                return None
    except (OSError, ImportError, ValueError, AttributeError):
        return None
    return digest.hexdigest()


def _texts(module: str) -> Iterator[tuple[str, bytes]]:
    """Yield relative name and text of each file."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        loader: Any = spec.loader  # of a file or of a zip
        if spec.origin is not None:
            yield module, loader.get_data(spec.origin)
        return
    from importlib.resources import files

    yield from _in_folder(files(module), "")


def _in_folder(folder: Any, at: str) -> Iterator[tuple[str, bytes]]:
    entries = sorted(folder.iterdir(), key=lambda entry: str(entry.name))
    names = {entry.name for entry in entries}
    for entry in entries:
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _in_folder(entry, f"{at}{entry.name}/")
        elif entry.name.endswith(SOURCE) or (entry.name.endswith(COMPILED) and entry.name[:-1] not in names):
            yield at + entry.name, entry.read_bytes()
