"""Which configurations are measured, and what each is called; they are checked before any weights are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec_core.config.parse import YAML_SUFFIXES
from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.config.text_files import read_text, split_lines
from specdec_core.errors import ConfigError, RequestError
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo

PLAIN: Final = "plain"
OPTION: Final = "--methods"


@dataclass(frozen=True)
class Method:
    """A configuration under test. `label` names it in tables, pictures and files."""

    label: str
    config: Mapping[str, Any]


def load_methods(values: Sequence[str]) -> list[Method]:
    """Return the methods of `--methods`: each value is JSON, or a file (.json, .jsonl, .yaml) with the same in it.

    One configuration, a list of them, or an object from labels to configurations. Raises RequestError.
    """
    found = [pair for value in values for pair in _read(value)]
    if not found:
        message = f"{OPTION}: there is no configuration in it; give one, as {{'method': ...}} in JSON or in a file"
        raise RequestError(message)
    methods: list[Method] = []
    for label, config in found:
        name = _free(label or _label(config), [PLAIN, *(method.label for method in methods)])
        if label and name != label:
            message = f"{OPTION}: the label {label!r} is given twice, or is that of plain decoding"
            raise RequestError(message)
        methods.append(Method(name, config))
    return methods


def check_methods(methods: Sequence[Method], target: TargetInfo, registry: Registry) -> dict[str, ResolvedConfig]:
    """Return the resolved configurations by label; loads no weights.

    Raises ConfigError for the first method that cannot work with the target, naming it.
    """
    found = {}
    for method in methods:
        try:
            found[method.label] = resolve(method.config, target, registry)
        except ConfigError as error:
            message = f"{OPTION}, {method.label!r}: {error}"
            raise ConfigError(message) from error
    return found


def repeat_option(args: list[str]) -> list[str]:
    """Return the arguments with an option name before each value of `--methods A B C`, as the parser wants it."""
    found: list[str] = []
    inside = False
    for word in args:
        if word.startswith("--"):
            inside = False
        elif inside and found[-1] != OPTION:
            found.append(OPTION)
        inside = inside or word == OPTION
        found.append(word)
    return found


def _read(value: str) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    text = value.strip()
    if text[:1] in ("{", "["):
        yield from _configs(_parse(text, OPTION), OPTION)
        return
    file = Path(text.removeprefix("@")).expanduser()
    where = f"{OPTION} {file}"
    if not file.is_file():
        message = f"{where}: there is no such file, and it is no JSON either; a configuration begins with {{"
        raise RequestError(message)
    content = read_text(file, where, RequestError)
    if file.suffix == ".jsonl":
        for number, line in enumerate(split_lines(content), 1):
            if line.strip():
                yield from _configs(_parse(line, f"{where}, line {number}"), f"{where}, line {number}")
    elif file.suffix in YAML_SUFFIXES:
        yield from _configs(_parse_yaml(content, where), where)
    else:
        yield from _configs(_parse(content, where), where)


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"{where} is not valid JSON: {error}"
        raise RequestError(message) from error


def _parse_yaml(text: str, where: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        message = f"{where} is not valid YAML: {error}"
        raise RequestError(message) from error


def _configs(data: Any, where: str) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield (label or None, configuration) of what was read."""
    if isinstance(data, list):
        for place, each in enumerate(data):
            yield from _configs(each, f"{where}, entry {place}")
        return
    if not isinstance(data, dict) or not data:
        message = f"{where}: expected a speculative configuration, an object with keys such as 'method', got {data!r}"
        raise RequestError(message)
    if all(isinstance(each, dict) for each in data.values()):
        for label, config in data.items():
            if not config:
                message = f"{where}: the configuration of {label!r} has no keys"
                raise RequestError(message)
            yield label, config
        return
    if not {"method", "model"} & data.keys():
        message = f"{where}: a configuration needs 'method' or 'model'; it has {', '.join(map(repr, data))}"
        raise RequestError(message)
    yield None, data


def _label(config: Mapping[str, Any]) -> str:
    """Return the method's name, or its checkpoint's, with k."""
    name = str(config.get("method") or Path(str(config["model"])).name)
    k = config.get("num_speculative_tokens")
    return name if k is None else f"{name} k={k}"


def _free(label: str, taken: Sequence[str]) -> str:
    """Return the label, with a number behind it if it is taken."""
    number, free = 1, label
    while free in taken:
        number += 1
        free = f"{label} #{number}"
    return free
