"""What is printed in the course of a run: a line a measurement, and on a terminal one that moves in between."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence

from specdec_train.fit.loop import Report

STEPS = 20  # over which loss and speed are taken


class Progress:
    """Called with a report after each step."""

    def __init__(self) -> None:
        """Begin without steps."""
        self._losses: deque[float] = deque(maxlen=STEPS)
        self._marks: deque[tuple[float, int]] = deque(maxlen=STEPS + 1)
        self._moves = sys.stderr.isatty()

    def __call__(self, report: Report) -> None:
        """Print what there is to tell."""
        if report.loss is not None:
            self._losses.append(report.loss)
        self._marks.append((time.monotonic(), report.place.ids))
        line = self._line(report)
        if self._moves:
            print(f"\r\033[K{line}", end="\n" if report.measured else "", file=sys.stderr, flush=True)
        elif report.measured:
            print(line, file=sys.stderr, flush=True)

    def _line(self, report: Report) -> str:
        done = report.place.ids / report.total
        (first, before), (now, ids) = self._marks[0], self._marks[-1]
        speed = (ids - before) / (now - first) if now > first else 0.0
        left = (report.total - ids) / speed if speed else 0.0
        loss = sum(self._losses) / len(self._losses) if self._losses else float("nan")
        return (
            f"{done:6.1%}  {ids:>9,} ids  loss {loss:6.3f}  agreement {shares(report.agreement)}  "
            f"{speed:5.0f} ids/s  {int(left) // 60}:{int(left) % 60:02d} left"
        )


def shares(values: Sequence[float] | None) -> str:
    """Return shares as text: .45 .38 .31; a dash for none."""
    return " ".join(f"{value:.3f}".lstrip("0") for value in values) if values else "-"
