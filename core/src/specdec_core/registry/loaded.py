"""A plugin that was loaded, and what configuration asks of whoever loads them; it loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from specdec_core.errors import PluginError
from specdec_core.registry.record import Record


@dataclass(frozen=True)
class LoadedPlugin:
    """A record together with the plugin object that it led to.

    record  what was asked for; `record.name` is what hooks get as `method`
    plugin  the plugin object; records of several names may share one
    hooks   names of the hooks that the object implements
    """

    record: Record
    plugin: Any
    hooks: frozenset[str]

    @property
    def name(self) -> str:
        """The name under which the plugin was loaded."""
        return self.record.name


class Plugins(Protocol):
    """The part of `specdec_core.registry.loader.Registry` by which a configuration reaches plugins."""

    def plugin(self, record: Record) -> LoadedPlugin:
        """Return the plugin of a record, loaded if need be; raises PluginError."""

    def call(
        self, loaded: LoadedPlugin, hook: str, *, stage: str | type[PluginError] | None = None, **arguments: Any
    ) -> Any:
        """Call one plugin's implementation of a hook, None if it has none; raises PluginError of that stage."""
