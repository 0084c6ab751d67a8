"""Checks whether a plugin object's functions fit the hook specifications, and calls one with what it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import pluggy

from specdec_core.errors import RegisterStageError
from specdec_core.registry.catalog import Record
from specdec_core.registry.groups import Kind

MAKE_HOOKS: Final[dict[Kind, str]] = {"proposer": "specdec_make_proposer", "verifier": "specdec_make_verifier"}

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_AUTHORS = "Tell the authors of the plugin."


@dataclass(frozen=True)
class Implementation:
    """A function of a plugin that is marked as a hook implementation."""

    hook: str
    function: Any
    optional: bool
    wrapper: bool


def implementations(manager: pluggy.PluginManager, plugin: Any) -> Iterator[Implementation]:
    """Yield the functions of a plugin object that are marked as hook implementations."""
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            continue
        wrapper = bool(options.get("wrapper") or options.get("hookwrapper"))
        hook = options.get("specname") or name
        yield Implementation(hook, getattr(plugin, name), bool(options.get("optionalhook")), wrapper)


def check_plugin(manager: pluggy.PluginManager, plugin: Any, record: Record, known: Mapping[str, Any]) -> None:
    """Raise RegisterStageError for a plugin whose hooks do not fit `known`, the hook specifications by name."""
    if plugin is None or inspect.isclass(plugin):
        what = "None" if plugin is None else f"the class {plugin.__qualname__}"
        raise RegisterStageError(
            record, f"it points to {what}, not to a plugin object", f"Name an instance. {_AUTHORS}"
        )
    found = list(implementations(manager, plugin))
    for implementation in found:
        _check_implementation(implementation, record, known)
    _check_marks(plugin, {implementation.hook for implementation in found}, record, known)


def check_kind(hooks: frozenset[str], record: Record) -> None:
    """Raise RegisterStageError if the plugin lacks the hook that makes what the record declares."""
    needed = MAKE_HOOKS.get(record.kind)
    if needed is not None and needed not in hooks:
        has = ", ".join(sorted(hooks)) or "no hook at all"
        problem = f"it is named as a {record.kind} but does not implement {needed} (it implements {has})"
        raise RegisterStageError(record, problem, f"Mark the function with @specdec_core.hookimpl. {_AUTHORS}")


def _check_implementation(implementation: Implementation, record: Record, known: Mapping[str, Any]) -> None:
    hook = implementation.hook
    if hook not in known:
        if implementation.optional:
            return
        close = get_close_matches(hook, known, n=1, cutoff=0.3)
        hint = f"; the nearest is {close[0]}" if close else ""
        step = f"Rename it, or mark it optionalhook=True if another host calls it. {_AUTHORS}"
        raise RegisterStageError(record, f"there is no hook {hook}{hint}", step)
    if implementation.wrapper:
        problem = f"{hook} is a hook wrapper, which is never run: plugins are called one by one"
        raise RegisterStageError(record, problem, _AUTHORS)
    signature = inspect.signature(implementation.function)
    allowed = tuple(inspect.signature(known[hook]).parameters)
    unknown = [p.name for p in signature.parameters.values() if _is_unknown(p, allowed)]
    if unknown:
        problem = (
            f"{hook}{signature} asks for {', '.join(unknown)}, which the hook does not have; "
            f"it has {', '.join(allowed)}"
        )
        raise RegisterStageError(record, problem, _AUTHORS)


def _is_unknown(parameter: inspect.Parameter, allowed: tuple[str, ...]) -> bool:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        return True
    return parameter.kind in _NAMED and parameter.name not in allowed and parameter.default is parameter.empty


def _check_marks(plugin: Any, marked: set[str], record: Record, known: Mapping[str, Any]) -> None:
    for hook in known:
        function = inspect.getattr_static(plugin, hook, None)
        if hook not in marked and inspect.isfunction(function):
            step = f"Mark it with @specdec_core.hookimpl. {_AUTHORS}"
            raise RegisterStageError(record, f"{hook} is defined but not marked as a hook implementation", step)
