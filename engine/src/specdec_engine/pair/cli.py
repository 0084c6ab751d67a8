"""The subcommand `specdec pair`, or `specdec plugins doctor --pair`: reads the pair, prints the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from specdec_core.cli.output import emit
from specdec_core.cli.subcommand import of_function, run
from specdec_core.errors import RequestError
from specdec_engine import cli_options as options

HELP: Final = "Examine whether a draft fits a target: their files, then a short run; as `plugins doctor --pair`."


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments; return 0 for a pair that does well or fairly, else 1.

    Raises RequestError for arguments that do not fit, like any other SpecdecError for what then goes wrong.
    """
    return run(of_function(pair, HELP), args, "pair")


def pair(
    target: Annotated[str, typer.Argument(help="Folder of the target, a .gguf file, or a hub id.")],
    draft: Annotated[str, typer.Argument(help="Folder or name of the draft, a hub id, or the name of a method.")],
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", "-sc", help="Further keys, as JSON, @file.json or @file.yaml."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File of prompts, as for `specdec verify`; left out: eight of our own.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=4, help="The most tokens of an answer.")] = 24,
    chat: options.Chat = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    max_model_len: options.MaxModelLen = None,
    trust_remote_code: options.TrustRemoteCode = False,
    plugin: options.Plugin = None,
) -> int:
    """Look at the files, then run."""
    from specdec_core.config.parse import load_mapping, spell_keys
    from specdec_engine.bench.arms import ModelOptions
    from specdec_engine.bench.prompts import load_prompts
    from specdec_engine.cli import read_plugins
    from specdec_engine.pair.session import Examination
    from specdec_engine.verify.default_prompts import own_prompts

    more = {} if speculative_config is None else spell_keys(load_mapping(speculative_config))
    if "model" in more:
        message = "--speculative-config names a model, and DRAFT is one: leave one out"
        raise RequestError(message)
    report = Examination(
        model=ModelOptions(
            model=target,
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            trust_remote_code=trust_remote_code,
            plugins=read_plugins(plugin),
        ),
        draft=draft,
        more=more,
        prompts=own_prompts() if prompts is None else load_prompts(prompts, None),
        max_tokens=max_tokens,
        chat=chat,
    ).run()
    if as_json:
        emit(json.dumps(report.as_json(), indent=1))
    else:
        for line in report.lines():
            emit(line)
    return int(report.verdict not in ("good", "weak"))
