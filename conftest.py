"""`--cases N`: at most N cases of every parametrised test, as `make test-fast` runs them."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    text = "run at most N cases of every parametrised test, spread over all of them"
    parser.addoption("--cases", type=int, metavar="N", help=text)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases beyond the number; the first is always kept."""
    most: int | None = config.getoption("cases")
    if most is None:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {id(group[len(group) * i // most]) for group in cases.values() for i in range(most)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
