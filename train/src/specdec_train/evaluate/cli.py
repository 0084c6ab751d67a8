"""The subcommand `specdec train evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdec_core.errors import RequestError


def evaluate(data: Annotated[Path, typer.Argument(help="Folder that `specdec train collect` wrote.")]) -> int:
    """Measure a head: agreement by depth, accepted length by task, speed."""
    message = f"specdec train evaluate {data}: not built yet"
    raise RequestError(message)
