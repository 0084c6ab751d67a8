"""What a plugin promises as a package: its entry point, its imports, its hooks and its options."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import pytest

from specdec_core import hookspecs
from specdec_core.config.options import OPTIONS_HOOKS
from specdec_core.late_hooks import behind
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION, Record
from specdec_core.registry.groups import Kind
from specdec_testing.building import registry_of
from specdec_testing.guard import Contract, foundation
from specdec_testing.subject import SubjectFixtures

HEAVY: Final = ("torch", "numba", "triton", "transformers")


@functools.lru_cache
def _imported(kind: Kind, name: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter that prints which heavy libraries a plugin and its options load; once each."""
    code = f"""
        import sys
        from specdec_core.registry.catalog import Catalog
        from specdec_core.registry.loader import Registry
        registry = Registry(Catalog.discover())
        loaded = registry.find({kind!r}, {name!r})
        registry.call(loaded, {OPTIONS_HOOKS[kind]!r}, method={name!r})
        print([name for name in {HEAVY!r} if name in sys.modules])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class PackagingContract(SubjectFixtures, Contract, promises=True):
    """The promises of a plugin as a package, of whatever kind. Three of them are skipped for an unpackaged plugin.

    plugin_kind  "proposer", "verifier" or "extension"
    """

    page: ClassVar[str] = "docs/plugin-in-ten-minutes.md"
    plugin_kind: ClassVar[Kind] = "proposer"

    def test_entry_point_is_present_and_named_by_the_rule(self, method: str, plugins: Mapping[str, Any] | None) -> None:
        """The distribution is specdec-plugin-*, its package specdec_plugin_*, and one entry point has the name."""
        record = self._installed(method, plugins)
        assert record.status == "ok", record.reason
        assert record.distribution.startswith("specdec-plugin-"), record.distribution
        package = record.value.partition(":")[0].partition(".")[0]
        assert package == record.distribution.replace("-", "_"), (
            f"{record.value} is not in {record.distribution}'s package"
        )

    def test_plugin_module_imports_nothing_heavy(self, method: str, plugins: Mapping[str, Any] | None) -> None:
        """Importing the plugin object and reading its options, in a fresh interpreter, loads no torch and the like."""
        record = self._installed(method, plugins)
        result = _imported(self.plugin_kind, record.name)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == "[]", f"importing {record.value} imports {result.stdout.strip()}"

    @foundation
    def test_hooks_are_marked_and_ask_for_known_arguments(self, method: str, plugins: Mapping[str, Any] | None) -> None:
        """Every specdec_* function is marked as a hook and asks only for arguments that the hook has."""
        plugin = registry_of(plugins).find(self.plugin_kind, method).plugin
        for name in [name for name in dir(plugin) if name.startswith("specdec_")]:
            function = getattr(plugin, name)
            mark = getattr(function, "specdec_impl", None)
            assert mark is not None, f"{name} is not marked with @hookimpl, so it is never called"
            specification = getattr(hookspecs, mark.get("specname") or name, None)
            if specification is None:
                assert mark.get("optionalhook"), f"there is no hook {name}; mark it optionalhook=True if a host has it"
                continue
            called = behind(function)
            if isinstance(called, type):
                continue
            asked = inspect.signature(called).parameters.values()
            known = inspect.signature(specification).parameters
            unknown = {p.name for p in asked if p.kind is not p.VAR_KEYWORD and p.name not in known}
            assert not unknown, f"{name} asks for {sorted(unknown)}, which the hook does not have"

    @foundation
    def test_options_are_strict_frozen_and_described(self, method: str, plugins: Mapping[str, Any] | None) -> None:
        """Options refuse unknown keys, cannot be changed, and describe every field."""
        registry = registry_of(plugins)
        model = registry.call(registry.find(self.plugin_kind, method), OPTIONS_HOOKS[self.plugin_kind], method=method)
        if model is None:
            return
        assert model.model_config.get("extra") == "forbid", f"{model.__name__} accepts unknown keys"
        assert model.model_config.get("frozen"), f"{model.__name__} is not frozen"
        bare = [name for name, field in model.model_fields.items() if not (field.description or "").strip()]
        assert not bare, f"{model.__name__} does not describe {bare}"
        with pytest.raises(ValueError, match="no_such_key"):
            model(no_such_key=1)

    def test_expected_failures_are_declared(self, method: str, plugins: Mapping[str, Any] | None) -> None:
        """Whatever the tests expect to fail, the hook specdec_expected_failures tells users, with the same reason."""
        record = self._installed(method, plugins)
        registry = registry_of(plugins)
        told = registry.call(registry.load(record), "specdec_expected_failures", method=method) or {}
        expected = type(self).expected_failures()
        missing = {name: reason for name, reason in expected.items() if told.get(name) != reason}
        assert not missing, f"specdec_expected_failures does not return {missing}, and `specdec plugins show` prints it"

    def _installed(self, method: str, plugins: Mapping[str, Any] | None) -> Record:
        """Return the method's record, or skip the test for an unpackaged plugin."""
        record = registry_of(plugins).catalog.find(self.plugin_kind, method)
        if record.distribution == LOCAL_DISTRIBUTION:
            pytest.skip("an unpackaged plugin has no entry point")
        return record
