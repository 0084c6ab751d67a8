"""Hooks that are imported when they are called: they answer as functions that were written into the plugin."""

from __future__ import annotations

import sys

import pytest

from specdec_core.config.options import MethodOptions
from specdec_core.errors import TraitsStageError
from specdec_core.late_hooks import hook_from
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry

CODE = """
from specdec_core.config.options import MethodOptions
class Options(MethodOptions): pass
def traits(ctx): return ("of", ctx)
def make(): raise RuntimeError("no memory")
"""


class Late:
    specdec_method_options = hook_from("late_parts:Options")
    specdec_method_traits = hook_from("late_parts:traits")
    specdec_method_defaults = hook_from("late_parts:nowhere")
    specdec_make_proposer = hook_from("late_parts:make")
    specdec_of_another_host = hook_from("late_parts:other", optionalhook=True)


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    (tmp_path / "late_parts.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "late_parts", raising=False)
    registry = Registry(Catalog.of([]).with_local({"late": Late()}))
    return registry, registry.find("proposer", "late")


def test_nothing_is_imported_before_a_hook_is_called(loaded):
    registry, plugin = loaded
    assert "specdec_method_traits" in plugin.hooks
    assert "late_parts" not in sys.modules
    assert registry.call(plugin, "specdec_method_traits", ctx=3, more=4) == ("of", 3)
    assert "late_parts" in sys.modules


def test_a_class_is_the_answer_and_a_function_gets_what_it_asks_for(loaded):
    registry, plugin = loaded
    model = registry.call(plugin, "specdec_method_options", method="late")
    assert issubclass(model, MethodOptions)
    assert model.__name__ == "Options"


def test_what_is_not_there_or_raises_is_an_error_of_the_hooks_stage(loaded):
    registry, plugin = loaded
    with pytest.raises(TraitsStageError, match="has no attribute 'nowhere'"):
        registry.call(plugin, "specdec_method_defaults", stage="traits", ctx=3)
    with pytest.raises(Exception, match="no memory"):
        registry.call(plugin, "specdec_make_proposer", ctx=3)
