"""numba's cache of compiled kernels, kept from mixing files of different age; knows no kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path


def drop_stale_caches(folder: Path, others: Sequence[Path] = ()) -> None:
    """Remove numba's cache indices in a package folder that are older than any source file of the package.

    numba compares a compiled function with its own file only, while kernels are inlined across files and trust each
    other's constants; a stale mixture would write outside its buffers. Without the index, numba compiles anew.
    `others` are files outside the folder that kernels take constants from.
    """
    newest = max(source.stat().st_mtime for source in (*folder.rglob("*.py"), *others))
    for index in folder.rglob("__pycache__/*.nbi"):
        with contextlib.suppress(OSError):  # another process was quicker, or the folder is read-only
            if index.stat().st_mtime < newest:
                index.unlink()
