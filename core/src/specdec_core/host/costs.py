"""What steps cost by the number of rows, and calls for drafts by how many were asked for; measured while decoding."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from specdec_core.stats import StepStats

FloatArray = npt.NDArray[np.float64]

KEPT: Final = 16  # measurements of one width that are remembered
EXACT: Final = 16  # widths up to this one are kept apart; of wider ones, eight in each doubling
TRUSTED: Final = 2  # measurements that a width needs to count: the first may hold what is only done once
EAGER: Final = 64  # measurements up to which the curve follows each one;
RENEWED: Final = 8  # later it follows after so many
BEYOND: Final = 1 << 20  # rows up to which a curve goes on in a straight line


class StepCosts:
    """The `Costs` of one session; a host shows it every step.

    Only steps in which nothing but newest ids and drafts ran count. Of each width the lower quartile of the last
    measurements is taken, since other work on the machine only ever adds time.
    """

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self._steps: Final = _Curve()
        self._drafts: Final = _Curve()

    def observe(self, stats: StepStats, most: int) -> None:
        """Take in a step in whose call for drafts no request could get more than `most`."""
        if stats.failed is not None or stats.prompt_rows or not stats.request_ids:
            return
        drafting = stats.seconds.get("propose", 0.0)
        rest = sum(stats.seconds.values()) - drafting
        if rest > 0:
            self._steps.add(len(stats.drafted) + sum(stats.drafted), 1e3 * rest)
            self._drafts.add(most, 1e3 * drafting)

    def step_ms(self, rows: npt.ArrayLike) -> FloatArray | None:
        """Return the time of a step by its rows; None until two widths were measured."""
        return self._steps.at(rows)

    def draft_ms(self, most: npt.ArrayLike) -> FloatArray | None:
        """Return the time of a call for drafts by the most that a request could get; None as above."""
        return self._drafts.at(most)


class _Curve:
    """A function of whole numbers that never falls, from noisy values at some of them."""

    def __init__(self) -> None:
        self._seen: Final[dict[int, deque[tuple[int, float]]]] = {}
        self._at: FloatArray = np.empty(0)
        self._ms: FloatArray = np.empty(0)
        self._old = False
        self._added = 0

    def add(self, x: int, ms: float) -> None:
        self._seen.setdefault(_bin(x), deque(maxlen=KEPT)).append((x, ms))
        self._added += 1
        self._old |= self._added <= EAGER or self._added % RENEWED == 0

    def at(self, x: npt.ArrayLike) -> FloatArray | None:
        if self._old:
            self._renew()
        if len(self._at) < 2:
            return None
        wanted = np.asarray(x, np.float64)
        values: FloatArray = np.interp(wanted, self._at, self._ms)
        return values

    def _renew(self) -> None:
        self._old = False
        points = []
        for _, seen in sorted(self._seen.items()):
            if len(seen) >= TRUSTED:
                times = sorted(ms for _, ms in seen)
                points.append((sum(x for x, _ in seen) / len(seen), times[len(times) // 4], len(seen)))
        self._at = np.array([x for x, _, _ in points])
        self._ms = _never_falling([(ms, weight) for _, ms, weight in points])
        if len(points) > 1:  # beyond the widest that was measured time goes on as it grew up to there
            slope = (self._ms[-1] - self._ms[0]) / (self._at[-1] - self._at[0])
            self._at = np.append(self._at, self._at[-1] + BEYOND)
            self._ms = np.append(self._ms, self._ms[-1] + slope * BEYOND)


def _bin(x: int) -> int:
    """Return the number under which a width is kept."""
    if x <= EXACT:
        return x
    shift = math.frexp(x)[1] - 4
    return x >> shift << shift


def _never_falling(values: list[tuple[float, int]]) -> FloatArray:
    """Return the nearest sequence, by weighted squares, that never falls: neighbours that do are put together."""
    blocks: list[tuple[float, int, int]] = []  # mean, weight, how many values
    for value, value_weight in values:
        mean, weight, size = value, value_weight, 1
        while blocks and blocks[-1][0] > mean:
            before, before_weight, before_size = blocks.pop()
            mean = (before * before_weight + mean * weight) / (before_weight + weight)
            weight, size = weight + before_weight, size + before_size
        blocks.append((mean, weight, size))
    return np.array([mean for mean, _, size in blocks for _ in range(size)])
