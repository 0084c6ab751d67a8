"""The subcommand `specdec verify`: reads what is to be verified; the exit code tells scripts what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from specdec_core.cli.subcommand import of_function, run
from specdec_core.errors import RequestError
from specdec_engine import cli_options as options

HELP: Final = (
    "Verify on prompts that a speculative configuration keeps the model's text: tokens, or their distribution."
)


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments and return its exit code: 0 ok, 1 a fault, 3 no draft was verified.

    Raises RequestError for arguments that do not fit, like any other SpecdecError for what then goes wrong.
    """
    return run(of_function(verify, HELP), args, "verify")


def verify(
    model: options.Model,
    speculative_config: Annotated[
        str,
        typer.Option(
            "--speculative-config", "-sc", help="JSON, @file.json or @file.yaml, vLLM's keys; or -sc.KEY VALUE."
        ),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(help="File with a prompt a line, or .jsonl with 'prompt' or 'turns'; left out: eight of our own."),
    ] = None,
    limit: options.Limit = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="The most tokens of an answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the seeded answers.")] = 0.8,
    seed: options.Seed = 0,
    draws: Annotated[
        int, typer.Option(min=0, help="Samples of a prompt, for a verifier that keeps the distribution; 0: none.")
    ] = 400,
    positions: Annotated[int, typer.Option(min=1, help="Prompts that are sampled for the distribution.")] = 3,
    chat: options.Chat = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what was found to this file.")] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    decode_width: Annotated[
        int | None, typer.Option(help="Fixed number of rows of every decode forward: then any difference is a fault.")
    ] = None,
    max_model_len: options.MaxModelLen = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    plugin: options.Plugin = None,
) -> int:
    """Check everything that can be checked without weights, then verify."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        message = f"--json {json_file}: there is no folder {str(json_file.parent)!r}"
        raise RequestError(message)
    from specdec_engine.bench.arms import ModelOptions
    from specdec_engine.bench.prompts import load_prompts
    from specdec_engine.cli import read_plugins
    from specdec_engine.sampling_params import SamplingParams
    from specdec_engine.verify.default_prompts import own_prompts
    from specdec_engine.verify.session import Verification

    return Verification(
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
        speculative_config=speculative_config,
        prompts=own_prompts()[:limit] if prompts is None else load_prompts(prompts, limit),
        params=SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=False),
        temperature=temperature,
        draws=draws,
        positions=positions,
        chat=chat,
        json=json_file,
    ).run()
