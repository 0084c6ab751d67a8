"""What unpackaged plugins promise: a file works like an installed plugin."""

import sys

import pytest

from specdec_core.errors import (
    PluginError,
)
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry


def refusal(plugin, kind="proposer"):
    registry = Registry(Catalog.of([]).with_local({"mine": plugin}))
    with pytest.raises(PluginError) as caught:
        registry.find(kind, "mine")
    assert not registry.manager.get_plugins()
    assert registry.loaded == ()
    return caught.value


FILE = """
from specdec_core import hookimpl

@hookimpl
def specdec_make_proposer(ctx):
    return "from the file"
"""


def test_a_file_is_a_plugin_under_a_private_name_and_runs_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import builtins\nbuiltins.runs = getattr(builtins, 'runs', 0) + 1\n" + FILE)
    import builtins

    for given in (file, str(file), f"{file}"):
        registry = Registry(Catalog.of([]).with_local({"mine": given}))
        loaded = registry.find("proposer", "mine")
        assert registry.call(loaded, "specdec_make_proposer", ctx="mine") == "from the file"
    assert builtins.runs == 1
    assert "mine" not in sys.modules
    del builtins.runs


def test_a_file_may_hold_a_plugin_object(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from specdec_core import hookimpl\nclass P:\n    @hookimpl\n"
        "    def specdec_make_proposer(self, ctx):\n        return 1\nplugin = other = P()\n"
    )
    for given in (str(file), f"{file}:other"):
        registry = Registry(Catalog.of([]).with_local({"mine": given}))
        assert type(registry.find("proposer", "mine").plugin).__name__ == "P"


def test_a_file_that_is_missing_or_fails_says_so_and_leaves_nothing(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("1 / 0")
    assert "ZeroDivisionError" in refusal(str(file)).problem
    assert "there is no file" in refusal(str(tmp_path / "other.py")).problem
    assert not [name for name in sys.modules if name.startswith("_specdec_local_") and "mine" in name]
    assert "is no 'module:attribute'" in refusal("what is this?").problem
