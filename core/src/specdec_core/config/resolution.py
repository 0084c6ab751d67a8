"""The state of one resolution: decisions, problems and warnings gathered; and what it loads by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from specdec_core.config.speculative import Decision, MethodOptions, ResolvedConfig, SpeculativeConfig, config_error
from specdec_core.context import MethodContext
from specdec_core.errors import ConfigError, PluginError
from specdec_core.registry.catalog import Catalog, Record
from specdec_core.registry.groups import Kind
from specdec_core.registry.installed import KERNEL_DISTRIBUTION, normalize
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource, Problem, TargetInfo

MAKE_CONTROLLER: Final = "specdec_make_controller"
OBSERVER_HOOKS: Final = frozenset({"specdec_session_started", "specdec_step_finished", "specdec_session_finished"})


class Resolution:
    """What one call of `resolve` has found out so far."""

    def __init__(
        self,
        config: SpeculativeConfig,
        target: TargetInfo,
        registry: Registry,
        problems: Iterable[Problem] = (),
        host_keys: Iterable[str] = (),
    ) -> None:
        """Begin with the problems that reading the configuration showed; `host_keys` are those the host acts on."""
        self.config = config
        self.target: Final = target
        self.registry: Final = registry
        self.problems: Final = list(problems)
        self.drafter_problems: Final[list[Problem]] = []
        self.host_has_methods = False
        self.model_note = ""  # what to know of how `model` was understood
        self.parts: tuple[ResolvedConfig, ...] = ()
        self.resolve_part: Callable[[Mapping[str, Any]], ResolvedConfig]
        self.decisions: Final[list[Decision]] = []
        self.host_keys: Final = frozenset(host_keys)
        self._warnings: Final[list[tuple[str, type[Warning]]]] = []
        self._errors: Final[list[ConfigError]] = []

    def decide(self, key: str, value: Any, reason: str) -> None:
        """Note what was decided."""
        self.decisions.append(Decision(key, value, reason))

    def problem(self, key: str, message: str, next_step: str = "") -> None:
        """Note what is wrong, unless something is known to be wrong with the key already."""
        if not self.is_wrong(key):
            self.problems.append(Problem(key=key, message=message, next_step=next_step))

    def warn(self, message: str, category: type[Warning]) -> None:
        """Note a warning, which is given if nothing is wrong."""
        self._warnings.append((message, category))

    def is_wrong(self, key: str) -> bool:
        """Return whether a problem is known with a common key."""
        return any(problem.key.partition(".")[0] == key for problem in self.problems)

    def find(self, kind: Kind, name: str, key: str) -> Record | None:
        """Look a name up that the configuration gives under `key`; None, and the problem noted, if it is not there."""
        try:
            return self.registry.catalog.find(kind, name)
        except ConfigError as error:
            self._errors.append(error)
            self.problems.append(Problem(key=key, message=str(error)))
            return None

    def context(self, plugin: LoadedPlugin, options: MethodOptions, draft: DraftSource | None) -> MethodContext[Any]:
        """Return what hooks of the method are told at this point: defaults change the configuration."""
        return MethodContext(
            method=plugin.name,
            config=self.config,
            options=options,
            draft=draft,
            target=self.target,
            parts=self.parts,
        )

    def call(self, plugin: LoadedPlugin, hook: str, stage: str = "check", **arguments: Any) -> Any:
        """Call a hook of a selected plugin with the arguments that it asks for, its name as `method` among them.

        If it fails while the configuration is known to be wrong, the problems are raised: they may be why it failed.
        """
        try:
            return self.registry.call(plugin, hook, stage=stage, method=plugin.name, **arguments)
        except PluginError:
            if self.problems:
                self.finish()
            raise

    def finish(self) -> None:
        """Raise one error for all problems, or give the warnings."""
        if len(self.problems) == 1 and self._errors:
            raise self._errors[0]
        if self.problems:
            raise config_error(self.problems)
        for message, category in self._warnings:
            warnings.warn(message, category, stacklevel=4)


def method_of(catalog: Catalog, model: str | None) -> str | None:
    """Return the method that `model` names, bare or in brackets; None if it is a checkpoint.

    Brackets always mean a name. Raises what `Catalog.find` raises for a name in brackets that is not installed.
    """
    if model is None:
        return None
    bracketed = model.startswith("[") and model.endswith("]")
    name = model[1:-1] if bracketed else model
    if bracketed:
        catalog.find("proposer", name)
    return name if bracketed or catalog.knows("proposer", name) else None


def find_controller(resolution: Resolution) -> LoadedPlugin | None:
    """Load the controller that the configuration names, if it names one."""
    name = resolution.config.controller
    record = resolution.find("extension", name, "controller") if name is not None else None
    if record is None:
        return None
    plugin = resolution.registry.load(record)
    if MAKE_CONTROLLER not in plugin.hooks:
        resolution.problem("controller", f"the extension {record.name!r} is no controller: it has no {MAKE_CONTROLLER}")
    resolution.decide("controller", record.name, f"given; {record.distribution} {record.version}")
    return plugin


def find_observers(resolution: Resolution) -> tuple[LoadedPlugin, ...]:
    """Load the observers that the configuration names, and decide on its further distributions of kernels."""
    found = []
    for name in resolution.config.observers:
        record = resolution.find("extension", name, "observers")
        if record is not None:
            plugin = resolution.registry.load(record)
            if not plugin.hooks & OBSERVER_HOOKS:
                resolution.problem("observers", f"the extension {record.name!r} observes nothing")
            resolution.decide("observers", record.name, f"given; {record.distribution} {record.version}")
            found.append(plugin)
    offering = {normalize(r.distribution): r.distribution for r in resolution.registry.catalog.of_kind("kernel")}
    for name in resolution.config.kernels:
        if normalize(name) not in offering:
            others = ", ".join(sorted(set(offering.values()) - {KERNEL_DISTRIBUTION})) or "none"
            resolution.problem("kernels", f"no kernels come from a distribution {name!r}", f"there are: {others}")
            continue
        resolution.registry.kernels.add(name)
        resolution.decide("kernels", name, "given; its kernels may be used")
    return tuple(found)


def data_of(plugin: LoadedPlugin) -> Record:
    """Return the record of a plugin as data: without the object of an unpackaged one."""
    return replace(plugin.record, local=None)
