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
CHECKS: Final = (
    *("configuring", "contract", "controller", "drawn", "driving", "host", "identity", "kernel", "method", "packaging"),
    *("trainer", "verifier", "watching"),
)
WIDTH: Final = 110
MOST: Final = 1200  # characters of what was seen

for _name in CHECKS:  # a bare assert of the kit then says both sides, also where the kit is installed editable
    if f"{PACKAGE}.{_name}" not in sys.modules:
        pytest.register_assert_rewrite(f"{PACKAGE}.{_name}")


Rank = tuple[int, int]
FAILED: Final = pytest.StashKey[dict[Any, list[tuple[Rank, str]]]]()  # foundations that failed, by test class


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the checks of a class run in their order: what the others rest on comes first."""
    ranks = {id(item): rank_of(item) for item in items}
    by_class: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if ranks[id(item)] is not None:
            by_class.setdefault(getattr(item, "cls", None), []).append(item)
    for own in by_class.values():
        places = [place for place, item in enumerate(items) if item in own]
        for place, item in zip(places, sorted(own, key=lambda item: ranks[id(item)] or (0, 0)), strict=True):
            items[place] = item


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a check that rests on one that failed, naming that one; so a fault is reported by one check."""
    rank = rank_of(item)
    for earlier, name in item.config.stash.get(FAILED, {}).get(_case_of(item), ()) if rank is not None else ():
        if rank is not None and earlier < rank:
            pytest.skip(f"not tried, since it rests on {name}, which failed")


def rank_of(item: pytest.Item) -> Rank | None:
    """Return when a check of the kit runs among those of its class; None for any other test."""
    owner = owner_of(item)
    if owner is None:
        return None
    rank: Rank = owner.rank_of(item.originalname)  # type: ignore[attr-defined] # pytest's own
    return rank


def _case_of(item: pytest.Item) -> tuple[Any, str]:
    """Return the class of an item and the parameters that its fixtures have."""
    return getattr(item, "cls", None), item.name.partition("[")[2]


def _note_failure(item: pytest.Item, owner: Any) -> None:
    """Remember a foundation that failed."""
    name: str = item.originalname  # type: ignore[attr-defined] # pytest's items have more than their type
    if getattr(owner.promised[name], "foundation", False):
        failed = item.config.stash.setdefault(FAILED, {})
        failed.setdefault(_case_of(item), []).append((owner.rank_of(name), name))


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
    _note_failure(item, owner)
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
    seen = " ".join((seen.partition("\nassert ")[0] or seen).split())  # a message of the check's own is enough
    seen = seen if len(seen) <= MOST else f"{seen[:MOST]} ..."
    more = "" if item.config.get_verbosity() >= 2 else " (-vv shows the traceback.)"
    text = (
        f"{item.nodeid} failed. Expected: {expected.rstrip('.')}. Seen: {(seen or 'no message').rstrip('.')}. "
        f"{owner.page} of the specdec repository explains it.{more}"
    )
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
