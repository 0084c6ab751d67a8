"""Models of a plugin's own keys: their bases, the checks that every plugin's model must pass, and strict validation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specdec_core.config.key_table import KEYS
from specdec_core.config.keys import Old
from specdec_core.errors import OptionsStageError
from specdec_core.registry.groups import Kind
from specdec_core.registry.loaded import LoadedPlugin, Plugins
from specdec_core.sources import Problem

Model = TypeVar("Model", bound=BaseModel)
SCALAR_ERRORS: Final = frozenset({"int_type", "float_type", "bool_type", "string_type"})
OPTIONS_HOOKS: Final[dict[Kind, str]] = {
    "proposer": "specdec_method_options",
    "verifier": "specdec_verifier_options",
    "extension": "specdec_method_options",
}
_AUTHORS: Final = "Tell the authors of the plugin."


class MethodOptions(BaseModel):
    """Base of the models of a method's, verifier's or controller's own keys: frozen, unknown keys refused.

    Every field needs a description. Field names are vLLM's names for the key where it has one; an old name of a key
    (`specdec_core.config.key_table`) would never be given, as it is read as today's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


class RequestOptions(BaseModel):
    """Base of the models of what one request may set for a method: frozen, unknown keys refused, fields described."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SharingRequestOptions(RequestOptions):
    """Base for methods that remember requests (trait `remembers`): nothing crosses from one namespace to another.

    A host that keeps requests apart, as a `cache_salt` asks, gives each salt a namespace of its own.
    """

    namespace: str = Field(
        default="", description="What is remembered is shared only by requests of the same namespace."
    )


def options_model(registry: Plugins, loaded: LoadedPlugin, hook: str) -> type[MethodOptions]:
    """Return the model of a plugin's own keys; `MethodOptions` itself, which has none, if the hook gives none.

    Raises OptionsStageError if the hook fails or the model breaks the rules of its base.
    """
    model = registry.call(loaded, hook, stage="options", method=loaded.name)
    return MethodOptions if model is None else cast("type[MethodOptions]", _checked(loaded, hook, model, MethodOptions))


def request_model(registry: Plugins, loaded: LoadedPlugin) -> type[RequestOptions] | None:
    """Return the model of what a request may set for a method, None if nothing; raises OptionsStageError."""
    hook = "specdec_request_options"
    model = registry.call(loaded, hook, stage="options", method=loaded.name)
    return None if model is None else cast("type[RequestOptions]", _checked(loaded, hook, model, RequestOptions))


def keys_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys that a model reads: names of its fields, or their aliases."""
    aliases = (field.validation_alias for field in model.model_fields.values())
    return (*model.model_fields, *(alias for alias in aliases if isinstance(alias, str)))


def validate(model: type[Model], values: Mapping[str, Any]) -> tuple[Model | None, list[Problem]]:
    """Validate JSON-like values without turning one scalar type into another; returns the instance or the problems.

    "4" and true are no numbers here, while a list may become a tuple and a text an enum member.
    """
    try:
        text = json.dumps(dict(values))
    except (TypeError, ValueError):  # objects from Python code; then pydantic's own rules hold
        return _validate_loosely(model, values)
    try:
        return model.model_validate_json(text, strict=True), []
    except ValidationError as error:
        if any(detail["type"] in SCALAR_ERRORS for detail in error.errors()):
            return None, problems_of(model, error)
    return _validate_loosely(model, values)


def problems_of(model: type[BaseModel], error: ValidationError) -> list[Problem]:
    """Turn pydantic's errors into problems, each with what was given and what was expected."""
    return [_problem(model, detail) for detail in error.errors()]


def nearest(key: str, valid: Iterable[str]) -> str:
    """Return the valid name most like a key, "" if none is like it."""
    close = get_close_matches(key, list(valid), n=1)
    return close[0] if close else ""


def _checked(loaded: LoadedPlugin, hook: str, model: Any, base: type[BaseModel]) -> type[BaseModel]:
    problem = ""
    if not (isinstance(model, type) and issubclass(model, base)):
        problem = f"{hook} returned {model!r}, not a subclass of specdec_core.config.speculative.{base.__name__}"
    elif model.model_config.get("extra") != "forbid" or not model.model_config.get("frozen"):
        problem = f"{model.__name__} must stay frozen and must refuse unknown keys (extra='forbid')"
    else:
        old = [name for name in keys_of(model) if base is MethodOptions and isinstance(KEYS.get(name), Old)]
        silent = [name for name, field in model.model_fields.items() if not (field.description or "").strip()]
        if silent:
            problem = f"{model.__name__} has fields without a description: {', '.join(silent)}"
        elif old:
            problem = f"{model.__name__} has fields named by old names, which are never given: {', '.join(old)}"
    if problem:
        raise OptionsStageError(loaded.record, problem, _AUTHORS)
    return cast("type[BaseModel]", model)


def _validate_loosely(model: type[Model], values: Mapping[str, Any]) -> tuple[Model | None, list[Problem]]:
    try:
        return model.model_validate(dict(values)), []
    except ValidationError as error:
        return None, problems_of(model, error)


def _problem(model: type[BaseModel], detail: Any) -> Problem:
    key = ".".join(str(part) for part in detail["loc"]) or "options"
    if detail["type"] == "extra_forbidden":
        valid = keys_of(model)
        close = nearest(key, valid)
        message = f"unknown key; the nearest is {close}" if close else "unknown key"
        return Problem(key=key, message=message, next_step=f"there are: {', '.join(valid) or 'none'}")
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["loc"] and detail["type"] != "missing":
        message = f"{message[:1].lower()}{message[1:]}, got {detail['input']!r}"
    return Problem(key=key, message=message)
