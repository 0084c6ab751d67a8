"""The subcommand `specdec vllm`: says which way a configuration takes into vLLM, and why; imports no vLLM, no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from specdec_core.cli.output import emit
from specdec_core.cli.subcommand import of_function, run
from specdec_core.config.speculative import ResolvedConfig, SpeculativeConfig
from specdec_core.errors import ConfigError
from specdec_core.sources import TargetInfo
from specdec_vllm.routes import Route, choose
from specdec_vllm.settings import KEY, K, configure, named

HELP: Final = "Show how vLLM would run a speculative configuration: by a method of its own, or by a drafter of ours."


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments.

    Raises RequestError for arguments that do not fit, and ConfigError, TargetError or PluginError for a configuration
    that cannot be used.
    """
    return run(of_function(route, HELP), args, "vllm")


def route(
    model: Annotated[str, typer.Argument(help="Folder or hub id of the target.")],
    speculative_config: Annotated[
        str, typer.Option("--speculative-config", "-sc", help="JSON, @file.json or @file.yaml, ours or vLLM's.")
    ],
    max_model_len: Annotated[int | None, typer.Option(help="The most tokens of prompt and output together.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the route, the keys that vLLM gets, and the reason."""
    target = TargetInfo.from_folder(model, max_model_len)
    given = unwrapped(SpeculativeConfig.parse(speculative_config).as_json())
    configured = configure(given, target)
    found = choose(configured, target)
    keys = for_vllm(found, configured.resolved, given)
    if as_json:
        data = {"method": configured.resolved.method, "route": found.name, "reason": found.reason, "keys": keys}
        emit(json.dumps(data, indent=1))
    else:
        _print(configured.resolved.method, found, keys)


def for_vllm(found: Route, resolved: ResolvedConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `--speculative-config` with which vLLM takes that route.

    For a method of vLLM's own these are its keys. A drafter of ours is asked for by its method and options, which the
    plugin inside of vLLM reads; the class that it then names there says nothing of them.
    """
    if found.name == "native":
        return dict(found.keys)
    inner = {key: value for key, value in given.items() if key not in ("method", K) and value is not None}
    return {"method": KEY, "model": resolved.method, K: resolved.num_speculative_tokens, KEY: inner}


def unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration of ours from one that is written for vLLM with our plugin; others as they are."""
    if config.get("method") != KEY:
        return config
    inner = config.get(KEY) or {}
    if not isinstance(inner, Mapping):
        message = f"{KEY}: expected a mapping of options, got {inner!r}"
        raise ConfigError(message)
    outer = {key: value for key, value in config.items() if key not in ("method", "model", KEY)}
    of_model = named(config["model"]) if "model" in config else {}
    return {**of_model, **outer, **inner}


def _print(method: str, found: Route, keys: Mapping[str, Any]) -> None:
    from specdec_core.cli.listing import print_table

    facts: list[tuple[str, Any]] = [
        ("method", method),
        ("route", found.name),
        ("reason", found.reason),
        ("for vLLM", f"--speculative-config {shlex.quote(json.dumps(keys))}"),
    ]
    print_table(("what", "is"), facts)
