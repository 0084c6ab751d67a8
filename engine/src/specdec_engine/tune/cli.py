"""The subcommand `specdec tune`: reads what may be chosen from, measures, prints tables and writes configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from specdec_core.cli.subcommand import of_function, run
from specdec_engine import cli_options as options
from specdec_engine.bench.cli import read_numbers

HELP: Final = "Choose method and number of drafts for these prompts on this machine, and write configurations."


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments and return its exit code.

    Raises RequestError for arguments that do not fit, like any other SpecdecError for what then goes wrong.
    """
    from specdec_engine.bench.methods import repeat_option

    return run(of_function(tune, HELP), repeat_option(args), "tune")


def tune(
    model: options.Model,
    prompts: Annotated[Path, typer.Option(help="File of prompts, as for `specdec bench`.")],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|JSON...",
            help="Speculative configurations to choose from, as for `specdec bench`; a num_speculative_tokens in one "
            "is the most that is tried. Left out: every installed method that needs no further key.",
        ),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Prompts that run together, e.g. 1,2,4,8.")] = "1,4",
    most_drafts: Annotated[int, typer.Option(min=1, help="The most drafts of methods that give no number.")] = 16,
    confirm: Annotated[int, typer.Option(min=0, help="Predictions that are run again, for each concurrency.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 128,
    limit: options.Limit = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    out: Annotated[Path | None, typer.Option(help="Folder for engine.json, vllm.json and tune.json.")] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    decode_width: options.DecodeWidth = None,
    max_model_len: options.MaxModelLen = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    plugin: options.Plugin = None,
) -> None:
    """Check everything that can be checked without weights, then measure."""
    from specdec_engine.bench.arms import ModelOptions
    from specdec_engine.bench.methods import load_methods
    from specdec_engine.bench.prompts import load_prompts
    from specdec_engine.cli import read_plugins
    from specdec_engine.sampling_params import SamplingParams
    from specdec_engine.tune.session import Tuning

    Tuning(
        model=ModelOptions(
            model=model,
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            decode_width=decode_width,
            revision=revision,
            trust_remote_code=trust_remote_code,
            plugins=read_plugins(plugin),
        ),
        prompts=load_prompts(prompts, limit),
        methods=load_methods(methods) if methods else None,
        concurrency=read_numbers(concurrency),
        params=SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed),
        chat=chat,
        most_drafts=most_drafts,
        confirm=confirm,
        out=out,
    ).run()
