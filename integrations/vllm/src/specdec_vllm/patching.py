"""Looks a part of vLLM up, checks that it is as expected, and puts ours in its place; knows none of the parts."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

MARK: Final = "_specdec_vllm"


class Mismatch(Exception):
    """vLLM is not as this version of ours expects; the message names the place."""


def find(module: str, path: str, parameters: Sequence[str] | None = None) -> Any:
    """Return an attribute of a module by its dotted path; with `parameters`, a callable that begins with these.

    Raises Mismatch if it is not there, or takes other arguments.
    """
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        message = f"{module} has no {path} ({error})"
        raise Mismatch(message) from error
    if parameters is not None:
        actual = list(inspect.signature(found).parameters)
        if actual[: len(parameters)] != list(parameters):
            message = f"{module}.{path} takes ({', '.join(actual)}), expected ({', '.join(parameters)}, ...)"
            raise Mismatch(message)
    return found


def is_ours(thing: Any) -> bool:
    """Return whether something has been put in place here already."""
    return MARK in getattr(thing, "__dict__", {})


def replace(module: str, path: str, ours: Any) -> None:
    """Put ours in the place of an attribute that `find` has found, and mark it."""
    setattr(ours, MARK, True)
    owner, _, name = path.rpartition(".")
    setattr(find(module, owner) if owner else importlib.import_module(module), name, ours)


def wrap(module: str, path: str, parameters: Sequence[str], make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of a callable that begins with these parameters, once.

    Raises Mismatch if it is not there or takes other arguments; then nothing has changed.
    """
    original = find(module, path)
    if not is_ours(original):
        find(module, path, parameters)
        replace(module, path, make(original))
