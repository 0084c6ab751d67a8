"""`confidence`: a draft is cut where its own estimate shows that another row brings less than it costs.

Estimates are taken as what they turned out to be: of drafts with an estimate in the same tenth, the share that was
accepted. Of all drafts of a batch, those most likely to be accepted run, as many as bring most tokens per second.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specdec_core.draft import RequestView, likeliest
from specdec_core.protocols import Costs
from specdec_core.stats import StepStats

FloatArray = npt.NDArray[np.float64]
Estimates = npt.NDArray[np.float32]

BINS: Final = 10
PRIOR: Final = 4.0  # drafts that an estimate counts for before any was tried
KEPT: Final = 0.998  # weight of what is known against one more draft in the same tenth
PATIENCE: Final = 64  # calls with drafts but without any estimate until that is reported

logger = logging.getLogger(__name__)


class Confidence:
    """Cuts drafts after they were made; how many a method may draft is as without it."""

    def __init__(self, probe_every: int) -> None:
        """`probe_every`: so many steps with cuts are followed by one without."""
        self._probe_every: Final = probe_every
        self._costs: Costs | None = None
        self._batch = 0  # requests that the step decodes
        self._cuts = 0
        self._without = 0
        self._shown: dict[str, FloatArray] = {}  # estimates of the drafts that wait for the target's answer
        self._tried: FloatArray = np.full(BINS, PRIOR)
        self._right: FloatArray = PRIOR * (np.arange(BINS) + 0.5) / BINS

    def use_costs(self, costs: Costs) -> None:
        """Keep the measured costs."""
        self._costs = costs

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        """Return the limits as they are."""
        self._batch = len(requests)
        self._shown = {}
        return k

    def trim(self, requests: Sequence[RequestView], confidence: Sequence[Estimates]) -> Sequence[int]:
        """Return how many drafts of each request are worth their rows."""
        lengths = [len(part) for part in confidence]
        if not sum(lengths):
            self._report()
            return lengths
        self._without = -1
        chances = [self._chances(part) for part in confidence]
        kept = self._best(chances, lengths)
        if kept != lengths:
            self._cuts += 1
            if self._cuts % self._probe_every == 0:
                kept = lengths
        self._shown = {
            request.id: np.asarray(part[likeliest(part, count)], np.float64)
            for request, part, count in zip(requests, confidence, kept, strict=True)
        }
        return kept

    def observe(self, stats: StepStats) -> None:
        """Compare what was accepted with the estimates."""
        nodes: Sequence[Sequence[int]] = [range(a) for a in stats.accepted] if stats.nodes is None else stats.nodes
        for name, drafted, accepted in zip(stats.request_ids, stats.drafted, nodes, strict=True):
            estimates = self._shown.pop(name, None)
            if estimates is None:
                continue
            for place, at in enumerate(_tenths(estimates[:drafted]).tolist()):
                self._tried[at] = KEPT * self._tried[at] + 1
                self._right[at] = KEPT * self._right[at] + (place in accepted)

    def _chances(self, estimates: Estimates) -> FloatArray:
        """Return the chance that each draft is accepted; one with a lower estimate has none that is higher."""
        shares: FloatArray = (self._right / self._tried)[_tenths(estimates)]
        order = np.argsort(-estimates, kind="stable")
        shares[order] = np.minimum.accumulate(shares[order]) if len(order) else shares[order]
        return shares

    def _best(self, chances: Sequence[FloatArray], lengths: list[int]) -> list[int]:
        """Return how many places of each chain belong to the best step."""
        owner = np.repeat(np.arange(len(chances)), lengths)
        flat = np.concatenate(chances)
        order = np.argsort(-flat, kind="stable")
        batch = max(self._batch, len(chances))
        times = None if self._costs is None else self._costs.step_ms(batch + np.arange(len(flat) + 1))
        if times is None:
            return lengths
        tokens = batch + np.concatenate([[0.0], np.cumsum(flat[order])])
        taken = int(np.argmax(tokens / times))
        kept: list[int] = np.bincount(owner[order[:taken]], minlength=len(chances)).tolist()
        return kept

    def _report(self) -> None:
        """Log once that drafts come without estimates."""
        if self._without < 0:
            return
        self._without += 1
        if self._without == PATIENCE:
            logger.warning(
                "controller 'confidence' has seen %d steps of drafts, none with an estimate that it may act on; it "
                "cuts chains of methods that give one (see docs/controllers.md). 'adaptive' works with every method",
                PATIENCE,
            )


def _tenths(estimates: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Return in which tenth of 0..1 each estimate lies."""
    return np.minimum((np.asarray(estimates, np.float64) * BINS).astype(np.int64), BINS - 1)
