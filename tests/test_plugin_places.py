"""Every hook that a plugin names by its place is there, and is a function or a class."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import pytest

from specdec_core import hookspecs as core_hookspecs
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.importing import import_object
from specdec_vllm import hookspecs as vllm_hookspecs


def places() -> Iterator[tuple[str, str]]:
    for record in Catalog.discover().records:
        if record.kind in ("proposer", "verifier", "extension"):
            for name, hook in inspect.getmembers(import_object(record)):
                if (place := getattr(hook, "place", None)) is not None:
                    yield name, place


@pytest.mark.parametrize(("hook", "place"), sorted(set(places())))
def test_a_hook_is_where_its_plugin_says_and_asks_for_what_the_hook_has(hook: str, place: str) -> None:
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name)
    known = {**vars(core_hookspecs), **vars(vllm_hookspecs)}[hook]
    assert isinstance(found, type) or {*inspect.signature(found).parameters} <= {*inspect.signature(known).parameters}
