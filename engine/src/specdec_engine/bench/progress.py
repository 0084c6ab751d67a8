"""The progress bar of a benchmark on standard error; it knows units and what runs now, and shows on terminals only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Bar:
    """Progress over units with the arm that runs now; on terminals only."""

    def __init__(self, total: int, done: int) -> None:
        """Start with `done` units of `total`."""
        self._bar: Any = None
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn("units"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        now = TextColumn("{task.fields[now]}")
        self._bar = Progress(*columns, now, console=Console(stderr=True), transient=True, refresh_per_second=2)
        self._task = self._bar.add_task("units", total=total, completed=done, now="")

    def show(self, text: str) -> None:
        """Show what runs now."""
        if self._bar is not None:
            self._bar.update(self._task, now=text)

    def advance(self) -> None:
        """Count one unit."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def __enter__(self) -> Bar:
        """Show the bar."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
