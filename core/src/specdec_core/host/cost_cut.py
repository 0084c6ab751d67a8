"""Cuts drafts that cost more than they bring, where nobody chose a controller; knows no host and no method.

A draft adds its chance of being accepted to the tokens of a step, and its row to the time of it. In the long run tokens
per second are most if a draft runs just where its chance is above the tokens that the session emits in the time of
the row. Times are those of the steps that run anyway (`specdec_core.host.costs`), chances what the method's own
estimates turned out to be worth (`specdec_core.host.chances`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from specdec_core.draft import BoolArray, Draft, RequestView
from specdec_core.host.chances import Chances, Followed
from specdec_core.host.costs import StepCosts
from specdec_core.stats import StepStats

if TYPE_CHECKING:
    from specdec_core.config.speculative import ResolvedConfig

FIRST: Final = 64  # decode steps of a session that run uncut
MEASURED: Final = 2  # steps without drafts from which on their cost counts as known,
PLAIN_EVERY: Final = 256  # and steps with drafts until another one without
MARGIN: Final = 0.01  # a cut must promise more tokens than this for each request of the step
RENEWED: Final = 16  # steps after which the table of costs is made anew,
TABLE: Final = 64  # and rows that it has at the least
LOOKED: Final = 1.05  # a step with all drafts that are on a device must cost so many plain ones to be looked at
KEPT: Final = 0.98  # weight of what the session emitted so far against one more step


class CostCut:
    """Cuts drafts of point masses that have an estimate; all others stay.

    Drafts that are on a device are read for it, which makes the device wait, only where their rows cost something.

    Only for verifiers that emit the host's own draws: what is cut depends on times, and with them the text does not
    depend on what was drafted.
    """

    def __init__(self, method: str, logger: logging.Logger | None = None) -> None:
        """Begin with nothing measured."""
        self._method: Final = method
        self._logger: Final = logger or logging.getLogger(__name__)
        self._costs: Final = StepCosts()
        self._chances: Final = Chances()
        self._requests: Final[dict[str, Followed]] = {}
        self._steps = 0
        self._plain = 0  # steps without drafts that were seen
        self._since_plain = 0
        self._tokens = 0.0  # for each request of a step, older steps counting less,
        self._times = 0.0  # and the time of the step in steps without drafts
        self._table: list[float] = []  # milliseconds by rows
        self._age = 0  # steps since the table was made
        self._said = False

    def trim(self, requests: Sequence[RequestView], draft: Draft, batch: int) -> Draft:
        """Return a host-form draft without what costs more than it brings; `batch` requests are decoded in the step."""
        if draft.confidence is None or draft.q_row is not None or not len(draft.tokens):
            return draft
        lengths, batch = list(draft.lengths or ()), max(batch, 1)
        if draft.on_device and self._steps >= FIRST and self._is_dear(batch, len(draft.tokens)):
            draft = draft.to_host()
        chances = None if draft.on_device else self._compared(requests, draft, lengths)
        if self._steps < FIRST:
            return draft
        self._since_plain += 1
        if self._plain < MEASURED or self._since_plain > PLAIN_EVERY:
            return Draft.empty(len(lengths))
        kept = None if chances is None else self._worthwhile(chances, batch)
        return draft if kept is None else draft.keep(kept)

    def observe(self, stats: StepStats) -> None:
        """See what a step took and what it emitted."""
        self._costs.observe(stats, 0)
        if stats.prompt_rows or not stats.request_ids:
            return
        self._steps += 1
        batch = len(stats.drafted)
        if not any(stats.drafted):
            self._plain += 1
            self._since_plain = 0
        self._age += 1
        times = self._step_times(batch)
        if times is not None and stats.failed is None:
            self._tokens = KEPT * self._tokens + sum(stats.emitted) / batch
            self._times = KEPT * self._times + 1e3 * sum(stats.seconds.values()) / times[batch]

    def finished(self, request_id: str) -> None:
        """Drop what is known of a request that ended."""
        self._requests.pop(request_id, None)

    def _compared(self, requests: Sequence[RequestView], draft: Draft, lengths: Sequence[int]) -> list[float]:
        """Compare the drafts before these with what came, and return the chances of these."""
        assert draft.confidence is not None
        tokens, estimates = draft.tokens.tolist(), draft.confidence.tolist()
        parents = None if draft.parents is None else draft.parents.tolist()
        chances: list[float] = []
        start = 0
        for request, length in zip(requests, lengths, strict=True):
            one = self._requests.get(request.id)
            if one is None:
                if not length:
                    continue
                one = self._requests[request.id] = Followed()
            known = request.tokens
            if one.tokens:
                self._chances.compare(one, known[one.known :].tolist())
            if length:
                end = start + length
                own = list(range(-1, length - 1)) if parents is None else parents[start:end]
                chances += self._chances.shown(one, len(known), tokens[start:end], own, estimates[start:end])
                start = end
        return chances

    def _is_dear(self, batch: int, count: int) -> bool:
        """Return whether a step of `batch` requests with `count` drafts takes clearly longer than one without."""
        times = self._step_times(batch + count)
        return times is not None and times[batch + count] > LOOKED * times[batch]

    def _worthwhile(self, chances: Sequence[float], batch: int) -> BoolArray | None:
        """Return which drafts bring more than their rows cost; None for all."""
        times = self._step_times(batch + len(chances))
        if times is None or not self._times:
            return None
        plain = times[batch]
        price = batch * max(1.0, self._tokens / self._times) / plain  # tokens in a millisecond
        order = sorted(range(len(chances)), key=chances.__getitem__, reverse=True)  # of equals the first one first
        gained = most = 0.0
        count = 0
        for place, draft in enumerate(order, 1):
            gained += chances[draft]
            worth = gained - price * (times[batch + place] - plain)
            if worth > most:
                most, count = worth, place
        if most - worth <= MARGIN * batch:
            return None
        self._report(batch, times[batch], batch + len(chances), times[batch + len(chances)])
        kept: BoolArray = np.zeros(len(chances), np.bool_)
        kept[order[:count]] = True
        return kept

    def _step_times(self, rows: int) -> list[float] | None:
        """Return milliseconds of steps of 0, 1, ... rows, up to `rows` and more; None while they are not known."""
        if self._age >= RENEWED or len(self._table) <= rows:
            times = self._costs.step_ms(np.arange(max(TABLE, 2 * rows)))
            self._age, self._table = 0, [] if times is None else times.tolist()
        return self._table or None

    def _report(self, few: int, few_ms: float, many: int, many_ms: float) -> None:
        if self._said:
            return
        self._said = True
        self._logger.info(
            "method %r: drafts are left out where their chance is below what a row costs; here a step of %d rows takes "
            '%.1f ms and one of %d rows %.1f ms (logged once; "cut_by_cost": false verifies all drafts)',
            self._method,
            few,
            few_ms,
            many,
            many_ms,
        )


def cost_cut(resolved: ResolvedConfig, logger: logging.Logger | None = None) -> CostCut | None:
    """Return what cuts the drafts of a session, None where nothing does.

    That is where `cut_by_cost` is false, where a controller was chosen, and where the text could depend on it.
    """
    if resolved.config.cut_by_cost is False or resolved.controller is not None or not resolved.emits_host_draws:
        return None
    return CostCut(resolved.method, logger)
