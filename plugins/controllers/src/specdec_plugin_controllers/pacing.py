"""What `adaptive` and `goodput` share: counts, costs, and when to draft against what is known; chooses nothing itself.

What is not tried is not known. So a request that drafts nothing drafts a little every now and then, and goes on with
that as long as it pays: such probes may take one hundredth of the time, whatever rows cost. A session that always
drafts runs one plain step now and then, to know what that costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specdec_core.draft import RequestView
from specdec_core.protocols import Costs
from specdec_core.stats import StepStats
from specdec_plugin_controllers.places import FloatArray, IntArray, Places

EVERY: Final = 4  # steps from one decision to the next; a new request is decided about at once
PROBE: Final = 2  # drafts of a probe: the second one tells whether more would be accepted
SOON: Final = 4  # steps until a new request that should draft nothing is probed
PROBES_SHARE: Final = 0.01  # of the time of plain steps, that probes may take,
SAVED: Final = 50  # and how many steps of that may be saved up
PLAIN_EVERY: Final = 256  # steps of drafts until one without
ROWS_AT_FIRST: Final = 16  # about as many rows run in a step while nothing is known of costs
MEASURED: Final = 2  # plain steps at the beginning
NEW: Final = -1  # the choice of a request that nothing was decided for


class Paced(ABC):
    """A controller that decides from expected gains, rows and costs; a subclass says how."""

    def __init__(self, places: Places, probe_every: int) -> None:
        """Take the counts, which must be new."""
        self.places: Final = places
        self.costs: Costs | None = None
        self._probe_every: Final = probe_every
        self._step = 0
        self._since_plain = 0
        self._known = False  # costs are measured
        self._plain = 0  # steps without drafts that were seen
        self._saved: float | None = None  # milliseconds that probes may take
        self._choice: IntArray = np.zeros(0, np.int64)  # by slot: index into the ladder or NEW,
        self._given: IntArray = np.zeros(0, np.int64)  # drafts allowed in this step,
        self._idle: IntArray = np.zeros(0, np.int64)  # and steps since the last draft was verified

    def use_costs(self, costs: Costs) -> None:
        """Keep the measured costs."""
        self.costs = costs

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        """Return how many drafts each request may get."""
        names = [request.id for request in requests]
        new = np.array([not self.places.known(name) for name in names], np.bool_)
        slots = self.places.slots(names)
        self._grow(slots, slots[new])
        self._step += 1
        most = np.asarray(k, np.int64)
        wished = self._unmeasured(most)
        if wished is None:
            if self._step % EVERY == 0 or np.any(self._choice[slots] == NEW):
                self._choice[slots] = self.choose(slots, most)
            wished = np.minimum(self.places.ladder[self._choice[slots]], most)
            wished = self._probed(slots, wished, most)
        self._given[slots] = wished
        answer: list[int] = wished.tolist()
        return answer

    @abstractmethod
    def choose(self, slots: IntArray, most: IntArray) -> IntArray:
        """Return for each request an index into the ladder, whose limit is at most `most`; costs are measured."""

    def observe(self, stats: StepStats) -> None:
        """Learn from a step."""
        self._plain += not stats.prompt_rows and not any(stats.drafted)
        asked = stats.asked or [True] * len(stats.request_ids)
        rows = [row for row, name in enumerate(stats.request_ids) if asked[row] and self.places.known(name)]
        if not rows:
            return
        slots = self.places.slots([stats.request_ids[row] for row in rows])
        if stats.failed is None:
            self.places.learn(slots, self._given[slots], stats, rows)
        drafted, accepted = (np.array(values)[rows] for values in (stats.drafted, stats.accepted))
        if drafted.any():
            paid = self._paid(slots, len(stats.request_ids), drafted, accepted)
            self._idle[slots] = np.where(drafted > 0, np.where(paid, self._probe_every, 0), self._idle[slots])

    def finished(self, request_ids: Sequence[str]) -> None:
        """Drop what is known of requests."""
        for name in request_ids:
            self.places.forget(name)

    def step_ms(self, rows: npt.ArrayLike, most: npt.ArrayLike) -> FloatArray:
        """Return milliseconds of a step with so many rows whose longest limit is `most`, drafting included."""
        assert self.costs is not None
        step, drafting = self.costs.step_ms(rows), self.costs.draft_ms(most)
        assert step is not None
        return step if drafting is None else step + drafting

    def _paid(self, slots: IntArray, batch: int, drafted: IntArray, accepted: IntArray) -> npt.NDArray[np.bool_]:
        """Return for each request whether its drafts brought more than a plain step would; count what probes cost."""
        if not self._known:
            return accepted > 0
        times = self.step_ms(batch + np.append(drafted, 0), np.append(self._given[slots], 0))
        plain, longer = float(times[-1]), times[:-1] - times[-1]
        paid: npt.NDArray[np.bool_] = accepted / batch * plain > longer
        if self._saved is not None:
            probes = (self._choice[slots] <= 0) & (drafted > 0) & ~paid
            self._saved -= float(longer[probes].sum())
        return paid

    def _unmeasured(self, most: IntArray) -> IntArray | None:
        """Return limits that tell what is not known yet of costs; None if enough is."""
        self._known = self._known or (self.costs is not None and self.costs.step_ms(1) is not None)
        known = self._known
        self._since_plain += 1
        measuring = not known and self._plain < MEASURED and (self._step <= MEASURED or self._step % EVERY == 0)
        if measuring or self._since_plain > PLAIN_EVERY:
            self._since_plain = 0
            return np.zeros(len(most), np.int64)
        few: IntArray = np.minimum(most, max(PROBE, ROWS_AT_FIRST // max(1, len(most))))
        return None if known else few

    def _probed(self, slots: IntArray, wished: IntArray, most: IntArray) -> IntArray:
        """Let requests that have drafted nothing for long draft a little, the longest waiting first."""
        off = wished == 0
        self._idle[slots[~off]] = 0
        self._idle[slots[off]] += 1
        if off.all():
            self._since_plain = 0
        batch = len(slots)
        least = PROBE if len(self.places.ladder) > 2 else int(self.places.ladder[-1])
        plain, probing = self.step_ms([batch, batch + least], [0, least]).tolist()
        share, most_saved = PROBES_SHARE * plain, SAVED * PROBES_SHARE * plain
        self._saved = most_saved / 2 if self._saved is None else min(self._saved + share, most_saved)
        # A probe may take more than all that can be saved up: it then waits until all is.
        allowed = int(self._saved // max(min(probing - plain, most_saved), 1e-9)) if self._saved > 0 else 0
        due = np.flatnonzero(off & (most > 0) & (self._idle[slots] > self._probe_every))
        chosen = due[np.argsort(-self._idle[slots[due]], kind="stable")][:allowed]
        limits: IntArray = wished.copy()
        limits[chosen] = np.minimum(most[chosen], least)
        return limits

    def _grow(self, slots: IntArray, new: IntArray) -> None:
        """Make room for slots, and begin anew at those that are new."""
        missing = int(slots.max(initial=-1)) + 1 - len(self._idle)
        if missing > 0:
            more = np.zeros(missing, np.int64)
            self._choice, self._given, self._idle = (
                np.concatenate([old, more]) for old in (self._choice, self._given, self._idle)
            )
        self._choice[new] = NEW
        self._given[new] = 0
        self._idle[new] = max(0, self._probe_every - SOON)
