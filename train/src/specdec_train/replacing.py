"""A file that is replaced in one step: a process that is killed leaves the old one or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

NEW: Final = ".new"  # the ending of files that are being written


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Have a file written under another name, bring it to the disk, and put it in the place of the old one."""
    new = file.with_name(file.name + NEW)
    write(new)
    with new.open("rb") as opened:
        os.fsync(opened.fileno())
    new.replace(file)
