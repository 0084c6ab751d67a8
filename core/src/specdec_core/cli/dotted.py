"""Dotted options, `--speculative-config.method mtp`, read as the JSON option that they are parts of; knows no key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specdec_core.config.parse import load_mapping
from specdec_core.errors import ConfigError

NAMES: Final = ("--speculative-config", "--speculative_config", "-sc")


def fold(arguments: Sequence[str]) -> list[str]:
    """Return arguments with all dotted options of a speculative configuration in one option with JSON.

    `-sc.method mtp`, `--speculative-config.num_speculative_tokens=3` and deeper ones, `-sc.a.b 1`, as in vLLM: a value
    that is JSON is read as such, any other one is a text. They are added to what the option itself gives. Arguments
    without a dotted option are returned as they are. Raises ConfigError for a key without a value or with two.
    """
    if not any(_key(argument) for argument in _options(arguments)):
        return list(arguments)
    rest: list[str] = []
    given: dict[str, Any] = {}
    whole: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            rest += [word, *words]
            break
        name, equals, value = word.partition("=")
        if not (_key(word) or name in NAMES):
            rest.append(word)
            continue
        if not equals:
            if not words:
                message = f"{name} needs a value"
                raise ConfigError(message)
            value = words.pop(0)
        if name in NAMES:
            whole.append(value)
        else:
            _put(given, _key(word).split("."), _read(value), name)
    if len(whole) > 1:
        message = f"{NAMES[0]} is given {len(whole)} times; give it once"
        raise ConfigError(message)
    merged = _merged(load_mapping(whole[0]), given, NAMES[0]) if whole else given
    return [*rest, NAMES[0], json.dumps(merged)] if "--" not in rest else [NAMES[0], json.dumps(merged), *rest]


def _options(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _key(argument: str) -> str:
    """Return the key behind the option's name and a dot, "" for an argument that is no dotted option."""
    name = argument.partition("=")[0]
    return next((name[len(option) + 1 :] for option in NAMES if name.startswith(f"{option}.")), "")


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _put(into: dict[str, Any], path: Sequence[str], value: Any, name: str) -> None:
    if not all(path):
        message = f"{name}: a key is missing between the dots"
        raise ConfigError(message)
    for part in path[:-1]:
        inner = into.setdefault(part, {})
        if not isinstance(inner, dict):
            message = f"{name}: {part!r} has the value {inner!r} already, and so no keys of its own"
            raise ConfigError(message)
        into = inner
    if path[-1] in into:
        message = f"{name} is given twice"
        raise ConfigError(message)
    into[path[-1]] = value


def _merged(base: Mapping[str, Any], more: Mapping[str, Any], name: str) -> dict[str, Any]:
    merged = dict(base)
    for key, value in more.items():
        if key not in merged:
            merged[key] = value
        elif isinstance(merged[key], Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(merged[key], value, f"{name}.{key}")
        else:
            message = f"{name}.{key} is given, and {name} has {key!r} too: leave one out"
            raise ConfigError(message)
    return merged
