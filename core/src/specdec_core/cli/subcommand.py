"""What every subcommand of another distribution does with its arguments: typer reads them, and errors are ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import typer

from specdec_core.errors import RequestError

# The base of unknown options, missing arguments and bad values; typer has no public name for it.
USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[1]


def of_function(function: Callable[..., Any], help_text: str) -> typer.Typer:
    """Return an application whose options are the parameters of one function."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=help_text)(function)
    return app


def run(app: typer.Typer, args: Sequence[str], name: str) -> int:
    """Run an application as `specdec NAME` and return its exit code: what its function returns, 0 if that is no number.

    Raises RequestError for arguments that do not fit; what the function raises is passed on.
    """
    try:
        result = typer.main.get_command(app)(list(args), prog_name=f"specdec {name}", standalone_mode=False)
    except USAGE_ERROR as error:
        said: Any = error
        message = f"{said.format_message()} (see `specdec {name} --help`)"
        raise RequestError(message) from error
    return result if isinstance(result, int) else 0
