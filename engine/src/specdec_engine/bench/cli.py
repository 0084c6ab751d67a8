"""The subcommand `specdec bench`: reads what is to be measured, measures, prints tables, writes JSON and a report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from specdec_core.cli.subcommand import of_function, run
from specdec_core.errors import RequestError
from specdec_engine import cli_options as options

HELP: Final = (
    "Measure methods beside plain decoding on the same prompts: speed-up with intervals, acceptance, identity."
)


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments and return its exit code: 1 if an output differs that must not.

    Raises RequestError for arguments that do not fit, like any other SpecdecError for what then goes wrong.
    """
    from specdec_engine.bench.methods import repeat_option

    return run(of_function(bench, HELP), repeat_option(args), "bench")


def bench(
    model: options.Model,
    prompts: Annotated[
        Path,
        typer.Option(
            help="File with a prompt a line, or .jsonl with 'prompt' or 'turns', and 'category' or 'task' if any."
        ),
    ],
    methods: Annotated[
        list[str],
        typer.Option(
            metavar="FILE|JSON...",
            help="Speculative configurations: JSON, or files (.json, .jsonl, .yaml) with one, a list, or "
            "an object from labels to configurations.",
        ),
    ],
    concurrency: Annotated[str, typer.Option(help="Prompts that run together, e.g. 1,2,4,8.")] = "1",
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 128,
    limit: options.Limit = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: options.Seed = 0,
    chat: options.Chat = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write rows and figures to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report, one page that needs no network.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write plain decoding's ids as traces for `replay`.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the --json file has.")] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    decode_width: options.DecodeWidth = None,
    max_model_len: options.MaxModelLen = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    plugin: options.Plugin = None,
) -> int:
    """Check everything that can be checked without weights, then measure."""
    if resume and json_file is None:
        message = "--resume needs --json FILE, the file that it goes on with"
        raise RequestError(message)
    for file, option in ((json_file, "--json"), (html, "--html"), (record, "--record")):
        if file is not None and not file.absolute().parent.is_dir():
            message = f"{option} {file}: there is no folder {str(file.parent)!r}"
            raise RequestError(message)
    from specdec_engine.bench.arms import ModelOptions
    from specdec_engine.bench.methods import load_methods
    from specdec_engine.bench.prompts import load_prompts
    from specdec_engine.bench.session import Files, Session
    from specdec_engine.cli import read_plugins
    from specdec_engine.sampling_params import SamplingParams

    session = Session(
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
        methods=load_methods(methods),
        concurrency=read_numbers(concurrency),
        params=SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed),
        chat=chat,
        files=Files(json_file, html, record, resume),
    )
    return session.run()


def read_numbers(text: str) -> list[int]:
    """Return the numbers of `--concurrency`, each once, in order. Raises RequestError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9][0-9]{0,3}", part) for part in parts):
        message = f"--concurrency {text!r}: expected whole numbers from 1 on, such as 1,2,4,8"
        raise RequestError(message)
    return sorted({int(part) for part in parts})
