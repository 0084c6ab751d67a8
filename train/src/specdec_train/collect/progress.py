"""Live progress of a collection on standard error: a bar on a terminal, else a line for each shard."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Any

from specdec_train.collect.settings import Limits
from specdec_train.data.manifest import Manifest, ShardEntry


class Progress:
    """Ids that are kept, how fast they come, and what was dropped."""

    def __init__(self, limits: Limits) -> None:
        """Nothing is shown until the context is entered."""
        self._limits = limits
        self._bar: Any = None
        self._task: Any = None
        self._begun = self._shard_begun = monotonic()
        self._decoded = 0
        self._before = 0  # ids that were there when this process began

    def __enter__(self) -> Progress:
        """Show the bar, on a terminal."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("kept"), BarColumn(), TextColumn("{task.completed:,.0f} ids"))
            rates = TextColumn("{task.fields[rate]}")
            self._bar = Bar(*columns, rates, TimeElapsedColumn(), console=Console(stderr=True), refresh_per_second=2)
            self._task = self._bar.add_task("kept", total=self._limits.ids, rate="")
            self._bar.start()
        return self

    def resumed(self, manifest: Manifest) -> None:
        """Tell what was there before."""
        self._begun = self._shard_begun = monotonic()
        self._before = manifest.ids
        if manifest.shards:
            self._line(f"goes on behind {len(manifest.shards)} shards, {manifest.ids:,} ids")
        if self._bar is not None:
            self._bar.update(self._task, completed=manifest.ids)

    def step(self, emitted: int) -> None:
        """Count ids that a step has emitted."""
        self._decoded += emitted
        if self._bar is not None:
            rate = self._decoded / max(monotonic() - self._begun, 1e-9)
            self._bar.update(self._task, rate=f"decoding {rate:.0f} ids/s")

    def shard(self, manifest: Manifest, entry: ShardEntry, dropped: Mapping[str, int]) -> None:
        """Tell of a shard that is on disk."""
        now = monotonic()
        rate = (manifest.ids - self._before) / max(now - self._begun, 1e-9)
        why = ", ".join(f"{reason} {count}" for reason, count in dropped.items() if count) or "none"
        self._line(
            f"{entry.file}: {entry.requests} requests, {entry.ids:,} ids in {now - self._shard_begun:.0f} s; "
            f"{manifest.ids:,} ids in all, {rate:.0f} ids/s; dropped so far: {why}"
        )
        self._shard_begun = now
        if self._bar is not None:
            self._bar.update(self._task, completed=manifest.ids)

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
