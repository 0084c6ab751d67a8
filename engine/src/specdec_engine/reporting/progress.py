"""A progress bar for calls that take longer than two seconds, on terminals only."""

from __future__ import annotations

import sys
from time import perf_counter
from types import TracebackType
from typing import Any

PATIENCE = 2.0


class Progress:
    """Shows finished prompts and tokens per second; silent for short calls and where stderr is no terminal."""

    def __init__(self, total: int, *, enabled: bool) -> None:
        """Start the clock."""
        self._total = total
        self._enabled = enabled and sys.stderr.isatty()
        self._start = perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        """Return the bar, which is not shown yet."""
        return self

    def update(self, finished: int, emitted: int) -> None:
        """Show how far it is, once it has taken long enough."""
        seconds = perf_counter() - self._start
        if not self._enabled or seconds < PATIENCE:
            return
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=finished, rate=f"{emitted / seconds:.1f} tokens/s")

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("prompts", total=self._total, rate="")
        self._bar.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
