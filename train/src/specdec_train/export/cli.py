"""The subcommand `specdec train export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdec_core.errors import RequestError


def export(data: Annotated[Path, typer.Argument(help="Folder that `specdec train collect` wrote.")]) -> int:
    """Write a trained head in the layout that engines read."""
    message = f"specdec train export {data}: not built yet"
    raise RequestError(message)
