"""The kit's pytest plugin: a check that fails reads as one paragraph, with the page that explains it.

pytest loads this module in every environment that has the kit, so it imports nothing but pytest and the standard
library; torch and transformers come with the test classes.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Generator
from typing import Any, Final

import pytest

PACKAGE: Final = "specdec_testing"
CHECKS: Final = ("configuring", "contract", "drawn", "host", "identity", "method", "packaging", "driving")
WIDTH: Final = 110
MOST: Final = 1200  # characters of what was seen

for _name in CHECKS:  # a bare assert of the kit then says both sides, also where the kit is installed editable
    if f"{PACKAGE}.{_name}" not in sys.modules:
        pytest.register_assert_rewrite(f"{PACKAGE}.{_name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the paragraph in place of the kit's own traceback; with -vv, or for another error, below it."""
    report = yield
    if not report.failed or call.excinfo is None:
        return report
    owner = owner_of(item)
    if owner is None:
        return report
    paragraph = explanation(item, owner, call.excinfo)
    if call.excinfo.errisinstance(AssertionError) and item.config.get_verbosity() < 2:
        report.longrepr = paragraph
    else:
        report.sections.append((f"{PACKAGE}: what this check says", paragraph))
    return report


def owner_of(item: pytest.Item) -> Any:
    """Return the class of the kit whose check an item runs, None for any other test."""
    cls, name = getattr(item, "cls", None), getattr(item, "originalname", None)
    for owner in getattr(cls, "__mro__", ()):
        if name in vars(owner).get("promised", {}) and owner.__module__.partition(".")[0] == PACKAGE:
            return owner
    return None


def explanation(item: pytest.Item, owner: Any, found: pytest.ExceptionInfo[BaseException]) -> str:
    """Return what a check expected, what it saw, and where to read on, as one paragraph."""
    name: str = item.originalname  # type: ignore[attr-defined]  # owner_of has found it
    expected = " ".join((vars(owner)["promised"][name].__doc__ or name.replace("_", " ")).split())
    error = found.value
    seen = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    seen = " ".join(seen.split())
    seen = seen if len(seen) <= MOST else f"{seen[:MOST]} ..."
    more = "" if item.config.get_verbosity() >= 2 else " (-vv shows the traceback.)"
    text = (
        f"{item.nodeid} failed. Expected: {expected.rstrip('.')}. Seen: {(seen or 'no message').rstrip('.')}. "
        f"{owner.page} of the specdec repository explains it.{more}"
    )
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
