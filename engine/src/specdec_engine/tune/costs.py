"""What a step costs, from measured times: the forward by requests and rows, drafting, and the rest; runs nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Points = Sequence[tuple[int, float]]  # (rows of a forward, seconds), rows ascending


@dataclass(frozen=True)
class StepTime:
    """Where the time of one decode step went.

    requests  that had rows in it; `rows` are those of all, `limit` the most drafts that each might get
    draft, forward, rest  seconds of drafting, of the target's forward, of sampling, verification and all else
    """

    requests: int
    rows: int
    limit: int
    draft: float
    forward: float
    rest: float


@dataclass(frozen=True)
class ForwardCost:
    """Seconds of a forward: measured points for some numbers of requests, straight lines between them.

    points  requests -> (rows of all requests, seconds), at least one point each
    scale   factor on all of them: what forwards take in real steps over what they took when they were measured alone
    """

    points: Mapping[int, Points]
    scale: float = 1.0

    def seconds(self, requests: int, rows: int) -> float:
        """Return the cost of `rows` rows of `requests` requests together; at least that of the fewest rows measured."""
        known = sorted(self.points)
        place = bisect_left(known, requests)
        if place == len(known):
            return self.scale * _between(self.points[known[-1]], rows)
        upper = _between(self.points[known[place]], rows)
        if known[place] == requests or place == 0:
            return self.scale * upper
        low, high = known[place - 1], known[place]
        part = (requests - low) / (high - low)
        return self.scale * ((1 - part) * _between(self.points[low], rows) + part * upper)

    def calibrated(self, times: Sequence[StepTime]) -> ForwardCost:
        """Return the costs scaled to the forwards of real steps; unchanged without any."""
        seen = sum(time.forward for time in times)
        told = sum(self.seconds(time.requests, time.rows) for time in times)
        return ForwardCost(self.points, self.scale * seen / told) if seen > 0 and told > 0 else self


def _between(points: Points, rows: int) -> float:
    """Return the value at `rows` on the lines through points; the last line goes on, the first value is the least."""
    if rows <= points[0][0] or len(points) == 1:
        return points[0][1]
    place = min(bisect_left([count for count, _ in points], rows), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    return max(low, low + (high - low) * (rows - left) / (right - left))


@dataclass(frozen=True)
class MethodCost:
    """Seconds of a step besides the forward, as straight lines; all of plain decoding's drafting is 0.

    draft, draft_per_request, draft_per_token  a call of the proposer; what each request adds, and each further token of
                                               the limit
    rest, rest_per_row                         sampling, verification and all else; what each row adds
    """

    draft: float = 0.0
    draft_per_request: float = 0.0
    draft_per_token: float = 0.0
    rest: float = 0.0
    rest_per_row: float = 0.0

    def seconds(self, requests: int, rows: int, limit: int) -> float:
        """Return the cost of a step with so many requests and rows, of which each might get `limit` drafts."""
        drafting = self.draft + self.draft_per_request * requests + self.draft_per_token * limit
        return max(0.0, drafting) + max(0.0, self.rest + self.rest_per_row * rows)


@dataclass
class StepTimes:
    """Times of steps, of which lines are fitted."""

    times: list[StepTime] = field(default_factory=list)

    def cost(self) -> MethodCost:
        """Return the method's costs; a slope is 0 where its cause did not vary, and never below."""
        if not self.times:
            return MethodCost()
        draft = _line([(time.requests, time.limit) for time in self.times], [time.draft for time in self.times])
        rest = _line([(time.rows,) for time in self.times], [time.rest for time in self.times])
        return MethodCost(*draft, *rest)


def _line(causes: Sequence[tuple[int, ...]], values: Sequence[float]) -> list[float]:
    """Return constant and slopes of the least squares through means of equal causes, slopes from 0 on."""
    table = np.array(causes, np.float64)
    y = np.array(values, np.float64)
    slopes = np.zeros(table.shape[1])
    open_columns = [column for column in range(table.shape[1]) if np.ptp(table[:, column]) > 0]
    while open_columns:
        centred = table[:, open_columns] - table[:, open_columns].mean(axis=0)
        found = np.linalg.lstsq(centred, y - y.mean(), rcond=None)[0]
        if (found >= 0).all():
            slopes[open_columns] = found
            break
        open_columns = [column for column, slope in zip(open_columns, found, strict=True) if slope > 0]
    return [float(y.mean() - slopes @ table.mean(axis=0)), *map(float, slopes)]
