"""What vLLM's steps did, for a controller and observers of ours; vLLM's own metrics count without it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec_core.host.reports import Reports
from specdec_core.stats import StepStats


@dataclass(frozen=True)
class Scheduled:
    """What vLLM's scheduler had run in one step.

    drafted    drafts that each request had verified, by name; none for requests without
    rows       rows of the target's forward, padding not included
    preempted  names of requests that lost their cache before it
    """

    drafted: Mapping[str, Sequence[int]]
    rows: int
    preempted: Collection[str] = ()

    @classmethod
    def of(cls, output: Any) -> Scheduled:
        """Read vLLM's `SchedulerOutput`."""
        return cls(
            output.scheduled_spec_decode_tokens,
            int(output.total_num_scheduled_tokens),
            output.preempted_req_ids or (),
        )


class Figures:
    """Joins what was proposed after one step with what the next one made of it.

    A row counts if it could have speculated: its request was known when drafts were asked for the last time. vLLM
    applies stop rules after this, so that `emitted` counts ids behind a stop as well. Of `seconds`, "forward" is all
    the time from one call for drafts to the next: vLLM's own phases are not told apart.
    """

    def __init__(self, reports: Reports) -> None:
        """Begin with no step."""
        self._reports: Final = reports
        self._proposed: dict[str, tuple[int, bool]] = {}  # drafts of a request that wait, and whether it was asked for
        self._seconds: Mapping[str, float] = {}
        self._since: float | None = None  # when the last call for drafts ended

    def verified(self, names: Sequence[str], new: Sequence[int], step: Scheduled, failed: str | None) -> None:
        """Report a step: `new` ids of each request, and the error of the proposer before it, if it failed."""
        for name in step.preempted:
            self._proposed.pop(name, None)
        asked: list[bool] = []
        seconds = dict(self._seconds)
        if self._since is not None:
            seconds["forward"] = time.perf_counter() - self._since
        stats = StepStats([], [], [], [], [], failed=failed, rows=step.rows, seconds=seconds, asked=asked)
        for name, count in zip(names, new, strict=True):
            if not count or name not in self._proposed:
                continue
            proposed, was_asked = self._proposed.pop(name)
            drafted = len(step.drafted.get(name, ()))
            accepted = min(count - 1, drafted)
            stats.request_ids.append(name)
            stats.proposed.append(max(proposed, drafted))  # more only where vLLM verifies ids of its own in their place
            stats.drafted.append(drafted)
            stats.accepted.append(accepted)
            stats.emitted.append(accepted + 1)
            asked.append(was_asked)
        stats.prompt_rows = max(0, step.rows - len(stats.drafted) - sum(stats.drafted))
        self._reports.step(stats)

    def proposed(self, counts: Mapping[str, tuple[int, bool]], seconds: float) -> None:
        """Note the drafts of each request, whether it was asked for, and how long that took."""
        self._proposed.update(counts)
        self._seconds = {"propose": seconds}
        self._since = time.perf_counter()

    def forget(self, name: str) -> None:
        """Drop what is known of a request that ended."""
        self._proposed.pop(name, None)
