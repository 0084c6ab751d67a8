"""The newest releases of other libraries that were tried; a newer one is used all the same, with one warning.

The oldest ones are the lower bounds in each distribution's metadata; `make test-versions` runs the tests that touch
these libraries at both ends.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from packaging.version import InvalidVersion, Version

NEWEST: Final = {"torch": "2.13", "transformers": "5.24", "typer": "0.29", "click": "8.5", "vllm": "0.33"}
logger = logging.getLogger("specdec")
_warned: set[str] = set()


def newer_than_tried(names: tuple[str, ...]) -> dict[str, str]:
    """Return the installed version of each of these distributions whose minor release is newer than any tried."""
    found: dict[str, str] = {}
    for name in names:
        try:
            installed = Version(version(name))
        except (PackageNotFoundError, InvalidVersion):
            continue
        if installed.release[:2] > Version(NEWEST[name]).release[:2]:
            found[name] = str(installed)
    return found


def warn_if_newer(*names: str) -> None:
    """Log one warning in this process for each of these distributions that is newer than any tried."""
    for name, installed in newer_than_tried(names).items():
        if name not in _warned:
            _warned.add(name)
            message = "%s %s is newer than any release that was tried (%s): if something fails, try that one"
            logger.warning(message, name, installed, NEWEST[name])
