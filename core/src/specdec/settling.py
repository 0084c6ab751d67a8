"""The state of one resolution: decisions, problems and warnings gathered, and the keys that nobody has claimed yet."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel

from specdec.catalog import LOCAL_DISTRIBUTION, Catalog, Record
from specdec.config import COMMON_KEYS, Decision, SpeculativeConfig, config_error
from specdec.errors import ConfigError, ConfigWarning, PluginError, PluginWarning
from specdec.groups import Kind
from specdec.installed import CORE_DISTRIBUTION, normalize
from specdec.loader import LoadedPlugin, Registry
from specdec.options import keys_of, nearest, options_model
from specdec.refused_keys import REFUSED_KEYS
from specdec.sources import Problem, TargetInfo

MAKE_CONTROLLER: Final = "specdec_make_controller"
OBSERVER_HOOKS: Final = frozenset({"specdec_session_started", "specdec_step_finished", "specdec_session_finished"})
OPTIONS_HOOKS: Final[dict[Kind, str]] = {
    "proposer": "specdec_method_options",
    "verifier": "specdec_verifier_options",
}
WORDS: Final[dict[Kind, str]] = {"proposer": "method"}


class Settling:
    """What one call of `resolve` has found out so far."""

    def __init__(
        self, config: SpeculativeConfig, target: TargetInfo, registry: Registry, problems: Iterable[Problem]
    ) -> None:
        """Begin with the problems that reading the configuration showed."""
        self.config = config
        self.target: Final = target
        self.registry: Final = registry
        self.problems: Final = list(problems)
        self.decisions: Final[list[Decision]] = []
        self.ignored: Final[list[str]] = []
        self._errors: Final[list[ConfigError]] = []

    def decide(self, key: str, value: Any, reason: str) -> None:
        """Note what was settled."""
        self.decisions.append(Decision(key, value, reason))

    def problem(self, key: str, message: str, next_step: str = "") -> None:
        """Note what is wrong, unless something is known to be wrong with the key already."""
        if not self.is_wrong(key):
            self.problems.append(Problem(key=key, message=message, next_step=next_step))

    def is_wrong(self, key: str) -> bool:
        """Say whether a problem is known with a common key."""
        return any(problem.key.partition(".")[0] == key for problem in self.problems)

    def find(self, kind: Kind, name: str, key: str) -> Record | None:
        """Look a name up that the configuration gives under `key`; None, and the problem noted, if it is not there."""
        try:
            return self.registry.catalog.find(kind, name)
        except ConfigError as error:
            self._errors.append(error)
            self.problems.append(Problem(key=key, message=str(error)))
            return None

    def call(self, plugin: LoadedPlugin, hook: str, stage: str = "check", **arguments: Any) -> Any:
        """Call a hook of a selected plugin with its name as `method`.

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
        for message in self.ignored:
            warnings.warn(message, ConfigWarning, stacklevel=4)


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
    known = any(record.name == name for kind in ("proposer", "alias") for record in catalog.of_kind(kind))
    return name if known or bracketed else None


def find_controller(settling: Settling) -> LoadedPlugin | None:
    """Load the controller that the configuration names, if it names one."""
    name = settling.config.controller
    record = settling.find("extension", name, "controller") if name is not None else None
    if record is None:
        return None
    plugin = settling.registry.load(record)
    if MAKE_CONTROLLER not in plugin.hooks:
        settling.problem("controller", f"the extension {record.name!r} is no controller: it has no {MAKE_CONTROLLER}")
    settling.decide("controller", record.name, f"given; {record.distribution} {record.version}")
    return plugin


def find_observers(settling: Settling) -> tuple[LoadedPlugin, ...]:
    """Load the observers that the configuration names, and settle its further distributions of kernels."""
    found = []
    for name in settling.config.observers:
        record = settling.find("extension", name, "observers")
        if record is not None:
            plugin = settling.registry.load(record)
            if not plugin.hooks & OBSERVER_HOOKS:
                settling.problem("observers", f"the extension {record.name!r} observes nothing")
            settling.decide("observers", record.name, f"given; {record.distribution} {record.version}")
            found.append(plugin)
    offering = {normalize(r.distribution): r.distribution for r in settling.registry.catalog.of_kind("kernel")}
    for name in settling.config.kernels:
        if normalize(name) not in offering:
            others = ", ".join(sorted(set(offering.values()) - {CORE_DISTRIBUTION})) or "none"
            settling.problem("kernels", f"no kernels come from a distribution {name!r}", f"there are: {others}")
            continue
        settling.registry.kernels.add(name)
        settling.decide("kernels", name, "given; its kernels may be used")
    return tuple(found)


def settle_other_keys(
    settling: Settling,
    method: LoadedPlugin,
    verifier: LoadedPlugin | None,
    models: Iterable[type[BaseModel]],
) -> None:
    """Settle the keys that are neither common nor options of what was selected: harmless, foreign, refused, unknown."""
    own = {key for model in models for key in keys_of(model)}
    open_keys = {}
    for key, value in settling.config.other_keys.items():
        if key in own:
            continue
        refused = REFUSED_KEYS.get(key)
        if refused is not None and refused.accepts(value):
            settling.decide(key, value, "it asks for what happens anyway")
        else:
            open_keys[key] = value
    owners = _owners(settling.registry) if open_keys else {}
    for key in open_keys:
        if key in owners:
            message = f"{key} is an option of {owners[key]}, not of {method.name}: it is ignored"
            settling.ignored.append(message)
            settling.decide(key, None, f"ignored: an option of {owners[key]}")
        elif key in REFUSED_KEYS:
            settling.problem(key, REFUSED_KEYS[key].reason)
        else:
            _unknown(settling, key, own, method, verifier)


def _unknown(settling: Settling, key: str, own: set[str], method: LoadedPlugin, verifier: LoadedPlugin | None) -> None:
    close = nearest(key, (*COMMON_KEYS, *own))
    with_verifier = f" with the verifier {verifier.name}" if verifier else ""
    listed = f"{method.name}{with_verifier} takes {', '.join(sorted(own)) or 'no keys of its own'}"
    settling.problem(key, "unknown key", f"did you mean {close}? {listed}" if close else listed)


def _owners(registry: Registry) -> dict[str, str]:
    """Return the keys of all other installed methods and verifiers, each with its owner; failures become warnings."""
    scratch = registry.scratch()
    owners: dict[str, str] = {}
    for kind, hook in OPTIONS_HOOKS.items():
        for record in registry.catalog.of_kind(kind):
            try:
                model = options_model(scratch, scratch.load(record), hook)
            except PluginError as error:
                if record.distribution != LOCAL_DISTRIBUTION:  # an unpackaged plugin need not be of every kind
                    warnings.warn(str(error), PluginWarning, stacklevel=6)
                continue
            for key in keys_of(model):
                owners.setdefault(key, f"the {WORDS.get(kind, kind)} {record.name}")
    return owners
