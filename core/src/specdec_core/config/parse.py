"""Turns what a user gives as a speculative configuration into a mapping; knows no key and validates no value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from specdec_core.config.json_hints import quoting_hint
from specdec_core.config.plain_values import plain
from specdec_core.config.text_files import read_text
from specdec_core.errors import ConfigError

NAME: Final = "speculative_config"
OTHERWISE: Final = "write -sc.KEY VALUE for each key, or -sc @file.json"
YAML_SUFFIXES: Final = (".yaml", ".yml")


def load_mapping(value: Any) -> dict[Any, Any]:
    """Return the mapping in a mapping, a JSON string, `@file.json`, `@file.yaml` or a path of such a file.

    Raises ConfigError: for text that does not parse with line and column, for other types with what is accepted.
    """
    if isinstance(value, Mapping):
        return dict(plain(value))
    if isinstance(value, PathLike):
        return _load_file(Path(value))
    if isinstance(value, str):
        text = value.strip()
        return _load_file(Path(text[1:]).expanduser()) if text.startswith("@") else _parse_json(text, NAME)
    message = (
        f"{NAME} must be a mapping, a JSON string, '@file.json', '@file.yaml' or a SpeculativeConfig, "
        f"got {type(value).__name__}"
    )
    raise ConfigError(message)


def spell_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values under keys with underscores for dashes; raises ConfigError for two spellings of one key."""
    spelled: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            message = f"keys of {NAME} must be strings, got {key!r}"
            raise ConfigError(message)
        name = key.strip().replace("-", "_")
        if name in spelled:
            message = f"{NAME} has the key {name!r} twice"
            raise ConfigError(message)
        spelled[name] = value
    return spelled


def _load_file(file: Path) -> dict[Any, Any]:
    text = read_text(file, f"{NAME} file {str(file)!r}", ConfigError)
    if file.suffix == ".json":
        return _parse_json(text, f"{NAME} file {str(file)!r}")
    if file.suffix in YAML_SUFFIXES:
        return _parse_yaml(text, f"{NAME} file {str(file)!r}")
    message = f"{NAME} file {str(file)!r} is neither .json nor .yaml"
    raise ConfigError(message)


def _parse_json(text: str, where: str) -> dict[Any, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        hint = f'; to name a method alone write {{"method": "{text}"}}' if text.replace("-", "_").isidentifier() else ""
        hint = hint or quoting_hint(text, OTHERWISE)
        message = f"{where} is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}{hint}"
        raise ConfigError(message) from error
    return _mapping(data, where)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        message = f"{NAME} has the key {next(key for key in keys if keys.count(key) > 1)!r} twice"
        raise ConfigError(message)
    return data


def _parse_yaml(text: str, where: str) -> dict[Any, Any]:
    import yaml

    try:
        return _mapping(yaml.safe_load(text), where)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""
        message = f"{where} is not valid YAML: {getattr(error, 'problem', None) or error}{place}"
        raise ConfigError(message) from error


def _mapping(data: Any, where: str) -> dict[Any, Any]:
    if not isinstance(data, dict):
        message = f"{where} must hold an object with keys, got {type(data).__name__}"
        raise ConfigError(message)
    return data
