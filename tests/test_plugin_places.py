"""Every hook that a plugin names by its place is there, and is a function or a class."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import pytest

from specdec_core.registry.catalog import Catalog
from specdec_core.registry.importing import import_object


def places() -> Iterator[str]:
    for record in Catalog.discover().records:
        if record.kind in ("proposer", "verifier", "extension"):
            for _, hook in inspect.getmembers(import_object(record)):
                if (place := getattr(hook, "place", None)) is not None:
                    yield place


@pytest.mark.parametrize("place", sorted(set(places())))
def test_a_hook_is_where_its_plugin_says(place: str) -> None:
    module, _, name = place.partition(":")
    assert callable(getattr(import_module(module), name))
