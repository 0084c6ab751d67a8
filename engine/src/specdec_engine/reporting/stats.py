"""What an engine says of itself while it works: a log line in vLLM's words, and the memory it holds; counts nothing."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from specdec_core.metrics import SpecMetrics

LOG_EVERY: Final = 10.0  # seconds of work
MEASURE_EVERY: Final = 1.0
MIB: Final = 2**20

logger = logging.getLogger("specdec_engine")


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """What an engine held when it was last measured.

    running, waiting          requests
    kv_pages, kv_pages_in_use pages of the KV arena, in all and held by requests
    kv_bytes                  bytes of the KV arena as allocated, 0 before the first forward
    draft_bytes               bytes of the proposer's indexes and caches; None if it does not tell, or without one
    kv_pages_published        pages that a later request may take over, held by requests now or not
    prefix_cache_queries, prefix_cache_hits  ids of the requests that looked for a prefix of theirs, and how many of
                              them were taken over, since the engine was made
    part_seconds              seconds of drafting of each part of a method that is made of others, else none
    """

    running: int
    waiting: int
    kv_pages: int
    kv_pages_in_use: int
    kv_bytes: int
    draft_bytes: int | None
    kv_pages_published: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    part_seconds: tuple[float, ...] = ()

    @property
    def kv_usage(self) -> float:
        """Share of the pages that requests hold, 0 .. 1."""
        return self.kv_pages_in_use / self.kv_pages if self.kv_pages else 0.0

    def line(self) -> str:
        """Return the log line."""
        rate = 100 * self.prefix_cache_hits / max(self.prefix_cache_queries, 1)
        reused = f", Prefix cache hit rate: {rate:.1f}%" if self.prefix_cache_queries else ""
        drafter = "" if self.draft_bytes is None else f", Drafter memory: {self.draft_bytes / MIB:.1f} MiB"
        return (
            f"Engine: Running: {self.running} reqs, Waiting: {self.waiting} reqs, "
            f"KV cache usage: {100 * self.kv_usage:.1f}% ({self.kv_pages_in_use} of {self.kv_pages} pages, "
            f"{self.kv_bytes / MIB:.1f} MiB allocated){reused}{drafter}"
        )


def spec_line(counted: SpecMetrics, seconds: float, lossy_verifier: str | None) -> str | None:
    """Return the log line of what was counted in that many seconds of work; None if no row could have speculated.

    The words are vLLM's. A position's rate is of the drafts that reached it, not of all drafts as in vLLM.
    """
    if counted.steps == 0:
        return None
    marked = "" if lossy_verifier is None else f", Lossy verifier: {lossy_verifier}"
    if counted.drafts == 0:
        return f"SpecDecoding metrics: no drafts in {counted.steps} steps{marked}"
    rates = ", ".join(f"{rate:.3f}" for rate in counted.acceptance_per_pos if rate is not None)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {counted.mean_acceptance_length:.2f}, "
        f"Accepted throughput: {counted.accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {counted.drafted / seconds:.2f} tokens/s, "
        f"Accepted: {counted.accepted} tokens, Drafted: {counted.drafted} tokens, "
        f"Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {100 * (counted.acceptance_rate or 0.0):.1f}%{marked}"
    )


class EngineStats:
    """Measures every second of work and logs every ten; the time between calls is no work and does not count.

    `state` is replaced whole by the thread that decodes, so that another one may read it at any time.
    """

    def __init__(
        self,
        metrics: SpecMetrics,
        measure: Callable[[], EngineState],
        *,
        lossy_verifier: str | None,
        log: bool,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`measure` asks the parts of the engine; `lossy_verifier` is the name to mark lines with, if it is lossy."""
        self._metrics = metrics
        self._measure = measure
        self._lossy_verifier = lossy_verifier
        self._log = log
        self._clock = clock
        self._logged = copy.deepcopy(metrics)
        self._began = 0.0
        self._since_log = self._since_measure = 0.0
        self.state = measure()

    def begin(self) -> None:
        """Start the clock of a step."""
        self._began = self._clock()

    def end(self) -> None:
        """Stop the clock of a step; measure and log if it is time."""
        seconds = self._clock() - self._began
        self._since_log += seconds
        self._since_measure += seconds
        if self._since_measure >= MEASURE_EVERY:
            self.measure()
        if self._log and self._since_log >= LOG_EVERY:
            self._write()

    def measure(self) -> None:
        """Look at what the engine holds now."""
        self._since_measure = 0.0
        self.state = self._measure()

    def _write(self) -> None:
        counted, seconds = self._metrics.since(self._logged), self._since_log
        self._logged, self._since_log = copy.deepcopy(self._metrics), 0.0
        self.measure()
        logger.info("%s", self.state.line())
        line = spec_line(counted, seconds, self._lossy_verifier)
        if line is not None:
            logger.info("%s", line)
