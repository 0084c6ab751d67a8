"""The command `specdec`: hands each subcommand to the module that answers it, and turns errors into one line.

`plugins list` is answered from metadata before anything heavy is imported; subcommands of other distributions (group
`specdec.commands.v1`) are imported only when they are called, or for `specdec --help`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, TextIO

from specdec_core.cli.commands import load_command
from specdec_core.cli.encoding import tolerant_output
from specdec_core.cli.listing import list_plugins
from specdec_core.cli.output import others_to_stderr
from specdec_core.errors import ConfigError, SpecdecError, SpecdecWarning
from specdec_core.registry.catalog import Catalog, Record

USAGE: Final = 2
INTERRUPTED: Final = 130
OWN: Final = ("plugins", "explain")
COLOURS: Final = {"error": "31", "warning": "33"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code: 0, 1 failed checks, 2 errors."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = _take_debug(arguments)
    with tolerant_output(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with others_to_stderr() if "--json" in arguments else contextlib.nullcontext():
                return _dispatch(arguments)
        except SpecdecError as error:
            if debug:
                raise
            say("error", str(error))
            return USAGE
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader of a pipe had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def say(kind: str, message: str, stream: TextIO | None = None) -> None:
    """Write one line to standard error, coloured on a terminal unless NO_COLOR is set."""
    stream = stream or sys.stderr
    line = f"{kind}: {' '.join(message.split())}"
    if stream.isatty() and not os.environ.get("NO_COLOR"):
        line = f"\x1b[{COLOURS[kind]}m{line}\x1b[0m"
    print(line, file=stream)


def _take_debug(arguments: list[str]) -> bool:
    """Remove `--debug` where it is ours: before the subcommand, or anywhere in a subcommand of our own."""
    found = False
    while arguments[:1] == ["--debug"]:
        found = bool(arguments.pop(0))
    if arguments[:1] and arguments[0] in OWN and "--debug" in arguments:
        arguments[:] = [argument for argument in arguments if argument != "--debug"]
        found = True
    return found


def _dispatch(arguments: list[str]) -> int:
    if arguments[:2] == ["plugins", "list"] and set(arguments[2:]) <= {"--json", "--all"}:
        return list_plugins(as_json="--json" in arguments, everything="--all" in arguments)
    arguments = _folded(_paired(arguments))
    catalog = Catalog.discover()
    commands = [record for record in catalog.of_kind("command") if record.name not in OWN]
    if arguments and any(record.name == arguments[0].rpartition(":")[2] for record in commands):
        return int(load_command(catalog.find("command", arguments[0])).command(arguments[1:]) or 0)
    return _run_app(arguments or ["--help"], commands)


def _paired(arguments: list[str]) -> list[str]:
    """Return `plugins doctor --pair ...` as the subcommand `pair`, which needs an engine and comes with one."""
    if arguments[:2] != ["plugins", "doctor"] or "--pair" not in arguments:
        return arguments
    return ["pair", *(argument for argument in arguments[2:] if argument != "--pair")]


def _folded(arguments: list[str]) -> list[str]:
    """Return the arguments with dotted options put together; nothing is imported for those that have none."""
    if not any("." in argument and argument.startswith("-") for argument in arguments):
        return arguments
    from specdec_core.cli.dotted import fold

    return fold(arguments)


def _refuse_unknown(name: str, commands: Sequence[Record]) -> None:
    """Raise ConfigError for a subcommand that is not installed, naming the distribution that has it, or the nearest."""
    known = (*OWN, *(record.name for record in commands))
    if name.startswith("-") or name in known:
        return
    from specdec_core.registry.homes import homes

    elsewhere = homes("command")
    if name in elsewhere:
        home = elsewhere[name]
        message = f"the command {name!r} comes with {home}, which is not installed: pip install {home}"
        raise ConfigError(message)
    near = get_close_matches(name, (*known, *elsewhere), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    message = f"there is no command {name!r}; {hint}`specdec --help` lists what there is"
    raise ConfigError(message)


def _run_app(arguments: list[str], commands: Sequence[Record]) -> int:
    import typer

    from specdec_core.cli.app import make_app

    wants_help = arguments[0] in ("--help", "-h")
    _refuse_unknown(arguments[0], commands)
    app = make_app([(record.name, _help_of(record) if wants_help else "") for record in commands])
    try:
        # Calling the application itself would leave sys.excepthook changed.
        typer.main.get_command(app)(args=["--help"] if wants_help else arguments, prog_name="specdec")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _help_of(record: Record) -> str:
    try:
        return str(load_command(record).HELP)
    except SpecdecError as error:
        return f"(cannot be used: {error})"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, SpecdecWarning):
        say("warning", str(message), file)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)
