"""The command `specdec train`: names its subcommands; what each does is in the folder of its name."""

from __future__ import annotations

from typing import Final

import typer

from specdec_core.cli.subcommand import run
from specdec_train.collect.cli import collect
from specdec_train.evaluate.cli import evaluate
from specdec_train.export.cli import export
from specdec_train.fit.cli import fit

HELP: Final = "Train a drafting head for a model, from the model alone: collect, fit, evaluate, export."


def command(args: list[str]) -> int:
    """Run the subcommand with its own arguments; raises RequestError for arguments that do not fit."""
    cli = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    for function in (collect, fit, evaluate, export):
        cli.command(function.__name__)(function)
    return run(cli, args or ["--help"], "train")
