"""Turns a record into a loaded plugin, in stages that are rolled back on failure, and calls its hooks one by one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

import pluggy

import specdec_core.hookspecs as core_hookspecs
from specdec_core.errors import (
    CheckStageError,
    ImportStageError,
    MakeStageError,
    OptionsStageError,
    PluginError,
    PluginWarning,
    RegisterStageError,
    SpecdecError,
    TraitsStageError,
)
from specdec_core.late_hooks import bind
from specdec_core.markers import PROJECT
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION, Catalog, Record
from specdec_core.registry.hooks import check_kind, check_plugin, implementations
from specdec_core.registry.importing import explain, import_object, undo_imports
from specdec_core.registry.kernels import Kernels
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.registry.offered import misfits

Stage = type[PluginError]

STAGES: Final[dict[str, Stage]] = {
    stage.stage: stage for stage in (OptionsStageError, TraitsStageError, CheckStageError, MakeStageError)
}
HOOK_STAGES: Final[dict[str, str]] = {
    "specdec_method_options": "options",
    "specdec_request_options": "options",
    "specdec_verifier_options": "options",
    "specdec_method_traits": "traits",
    "specdec_verifier_is_lossy": "traits",
    "specdec_verifier_emits_host_draws": "traits",
    "specdec_make_proposer": "make",
    "specdec_make_verifier": "make",
    "specdec_make_controller": "make",
    "specdec_make_trainer": "make",
}


class Registry:
    """The plugins of one session: one pluggy manager, nothing shared with other sessions.

    catalog    where names are looked up
    strict     observers' failures are raised instead of warned about
    manager    the pluggy manager, for hosts that need more than is here
    kernels    kernels of core, of the loaded plugins' distributions, and of those added to it
    """

    def __init__(self, catalog: Catalog, strict: bool = False, hookspecs: Sequence[ModuleType] = ()) -> None:
        """Begin with no plugin loaded; `hookspecs` are modules with further hooks, which an integration brings."""
        self.catalog: Final = catalog
        self.strict: Final = strict
        self.manager: Final = pluggy.PluginManager(PROJECT)
        self.kernels: Final = Kernels(catalog)
        self._specs: Final[dict[str, Any]] = {}
        self._more_hookspecs: Final = tuple(hookspecs)
        self._loaded: Final[dict[tuple[str, str, str, str], LoadedPlugin]] = {}
        self._warned: Final[set[tuple[str, str]]] = set()
        for module in (core_hookspecs, *hookspecs):
            self._add_hookspecs(module)

    def scratch(self) -> Registry:
        """Return an empty registry over the same catalog, for plugins that are only asked a question."""
        return Registry(self.catalog, self.strict, self._more_hookspecs)

    @property
    def hookspec_modules(self) -> tuple[ModuleType, ...]:
        """The modules with further hooks that an integration brought."""
        return self._more_hookspecs

    @property
    def loaded(self) -> tuple[LoadedPlugin, ...]:
        """What has been loaded, in order."""
        return tuple(self._loaded.values())

    def load(self, record: Record) -> LoadedPlugin:
        """Load a proposer, verifier or extension; a second time returns the first result.

        The stages are metadata, version, import and register. A failure in any, SystemExit and its like included,
        leaves nothing behind and raises the stage's PluginError with the cause chained.
        """
        key = (record.kind, record.name, record.distribution, record.value)
        known = self._loaded.get(key)
        if known is not None and (record.local is None or known.record.local is record.local):
            return known
        with undo_imports(record):
            plugin = self._pick(import_object(record))
            loaded = self._register(record, plugin)
        self._loaded[key] = loaded
        if record.distribution != LOCAL_DISTRIBUTION:
            self.kernels.add(record.distribution)
        return loaded

    def plugin(self, record: Record) -> LoadedPlugin:
        """Return the plugin of a record that is data alone, as in `ResolvedConfig`; loaded from the catalog if need be.

        Raises what `load` raises, and for an unpackaged plugin that is not loaded here ImportStageError.
        """
        known = self._loaded.get((record.kind, record.name, record.distribution, record.value))
        if known is not None:
            return known
        if record.distribution == LOCAL_DISTRIBUTION:
            problem = "it is an unpackaged plugin of another session, and is not loaded in this one"
            raise ImportStageError(record, problem, "Give it to this session as well.")
        return self.load(record)

    def find(self, kind: Any, name: str) -> LoadedPlugin:
        """Look a name up in the catalog and load it; raises what `Catalog.find` and `load` raise."""
        return self.load(self.catalog.find(kind, name))

    def call(self, loaded: LoadedPlugin, hook: str, *, stage: str | Stage | None = None, **arguments: Any) -> Any:
        """Call one plugin's implementation of a hook with the arguments it asks for; None if it has none.

        A hook may be written as a generator: what it yields is returned as a tuple. Anything it raises becomes the
        PluginError of `stage` (default: the hook's own), cause chained, except errors of ours, which say by themselves
        what they mean.
        """
        function = self._implementation(loaded, hook)
        if function is None:
            return None
        error_class = _stage(stage or HOOK_STAGES.get(hook, "check"))
        try:
            return _run(function, arguments)
        except (SpecdecError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise error_class(loaded.record, f"{hook} raised {explain(error)}", _next_step(loaded.record)) from error

    def make(self, loaded: LoadedPlugin, hook: str, protocol: type, **arguments: Any) -> Any:
        """Call a make hook and return what it built.

        Raises MakeStageError if the hook fails, is missing, or builds what does not follow the protocol (a class of
        `specdec_core.protocols`), or what its objects may offer besides.
        """
        made = self.call(loaded, hook, stage="make", **arguments)
        if isinstance(made, protocol):
            if problems := list(misfits(made, protocol)):
                problem = f"{hook} returned {type(made).__name__}, but {'; '.join(problems)}"
                step = "Tell the authors of the plugin to give what is no such call another name."
                raise MakeStageError(loaded.record, problem, step)
            return made
        wanted = [name for name in dir(protocol) if not name.startswith("_") and not hasattr(made, name)]
        what = f"{hook} returned {type(made).__name__}" if hook in loaded.hooks else f"it has no {hook}"
        lacks = f", which lacks {', '.join(wanted)}" if made is not None and wanted else ""
        problem = f"{what}{lacks}; a {protocol.__name__} was expected"
        raise MakeStageError(loaded.record, problem, "Tell the authors of the plugin.")

    def observed(self, hook: str) -> bool:
        """Return whether any loaded plugin implements an observer hook, so hosts need not gather what none reads."""
        return bool(getattr(self.manager.hook, hook).get_hookimpls())

    def broadcast(self, hook: str, **arguments: Any) -> None:
        """Tell every loaded plugin that implements an observer hook.

        A plugin that raises is warned about once a hook and costs nothing else, unless the registry is strict: then
        its error is raised as CheckStageError.
        """
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                _run(implementation.function, arguments)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._observer_failed(implementation.plugin, hook, error)

    def _add_hookspecs(self, module: ModuleType) -> None:
        self.manager.add_hookspecs(module)
        names = [name for name in dir(module) if self.manager.parse_hookspec_opts(module, name) is not None]
        self._specs.update((name, getattr(module, name)) for name in names)

    def _pick(self, found: Any) -> Any:
        """Return the plugin object itself: for a module without hooks, its attribute `plugin`."""
        if isinstance(found, ModuleType) and not any(implementations(self.manager, found)):
            return getattr(found, "plugin", found)
        return found

    def _register(self, record: Record, plugin: Any) -> LoadedPlugin:
        try:
            check_plugin(self.manager, plugin, record, self._specs)
            hooks = frozenset(found.hook for found in implementations(self.manager, plugin))
            check_kind(hooks, record)
            if not self.manager.is_registered(plugin):
                self._register_once(record, plugin)
        except (RegisterStageError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RegisterStageError(record, explain(error), _next_step(record)) from error
        return LoadedPlugin(record, plugin, hooks)

    def _register_once(self, record: Record, plugin: Any) -> None:
        name = f"{record.distribution}/{record.value}/{id(plugin):x}"
        try:
            self.manager.register(plugin, name=name)
        except BaseException:
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            raise

    def _implementation(self, loaded: LoadedPlugin, hook: str) -> Any:
        caller = getattr(self.manager.hook, hook)
        found = [each.function for each in caller.get_hookimpls() if each.plugin is loaded.plugin]
        return found[-1] if found else None

    def _observer_failed(self, plugin: Any, hook: str, error: BaseException) -> None:
        record = next(each.record for each in self.loaded if each.plugin is plugin)
        failure = CheckStageError(record, f"{hook} raised {explain(error)}", _next_step(record))
        if self.strict:
            raise failure from error
        key = (f"{record.distribution}/{record.value}", hook)
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(str(failure), PluginWarning, stacklevel=4)


def _run(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a hook with the arguments it asks for, and go through what it yields, whose failures are the hook's."""
    said = function(**bind(function, arguments))
    return tuple(said) if isinstance(said, Iterator) else said


def _stage(stage: str | Stage) -> Stage:
    return STAGES[stage] if isinstance(stage, str) else stage


def _next_step(record: Record) -> str:
    if record.distribution == LOCAL_DISTRIBUTION:
        return "Fix the plugin."
    return f"Try `pip install --upgrade {record.distribution}`, or tell its authors."
