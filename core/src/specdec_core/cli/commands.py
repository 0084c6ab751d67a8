"""Subcommands of other distributions (group `specdec.commands.v1`): how their modules are imported and checked."""

from __future__ import annotations

from typing import Any

from specdec_core.errors import RegisterStageError
from specdec_core.registry.record import Record


def load_command(record: Record) -> Any:
    """Import the module of a subcommand: `HELP: str` and `command(args: list[str]) -> int`.

    Raises the PluginError of the stage at which it fails.
    """
    from specdec_core.registry.importing import import_object  # here, so that a listing does not pay for it

    module = import_object(record)
    if not callable(getattr(module, "command", None)) or not isinstance(getattr(module, "HELP", None), str):
        problem = "a subcommand's module needs HELP, a text, and command(args: list[str]) -> int"
        raise RegisterStageError(record, problem, "Tell the authors of the plugin.")
    return module
