"""Hook implementations that are imported when they are called; so a plugin object is a list of where its hooks are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from specdec_core.markers import hookimpl

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def hook_from(place: str, *, optionalhook: bool = False) -> Any:
    """Return an implementation of the hook whose name the attribute has: `place` is "package.module:name".

    A function there is called with those of the hook's arguments that it asks for by name; a class is itself the
    answer, as the hooks that return a model of options need it. `optionalhook` is that of `hookimpl`.
    """

    @hookimpl(optionalhook=optionalhook)
    def implementation(self: object, **arguments: Any) -> Any:
        found = behind(hook)
        return found if isinstance(found, type) else found(**bind(found, arguments))

    hook: Any = implementation
    hook.place = place
    return hook


def behind(implementation: Any) -> Any:
    """Return what `hook_from` leads to, imported now; any other implementation is returned as it is."""
    place: str | None = getattr(implementation, "place", None)
    if place is None:
        return implementation
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def bind(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that the function asks for by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    return {p.name: arguments[p.name] for p in parameters if p.kind in _NAMED and p.name in arguments}
