"""Who is told what a session does: the counters, the controller, and the observers of all loaded plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from specdec_core.metrics import SpecMetrics
from specdec_core.protocols import Controller
from specdec_core.stats import StepStats

if TYPE_CHECKING:
    from specdec_core.config.speculative import ResolvedConfig
    from specdec_core.registry.loader import Registry


class Reports:
    """Passes the figures of a session on.

    metrics  the counters of the session, which the host may read at any time
    wanted   a controller or an observer is there, so that a host that counts by itself has to gather figures for them
    """

    def __init__(
        self,
        registry: Registry,
        resolved: ResolvedConfig,
        controller: Controller | None = None,
        metrics: SpecMetrics | None = None,
        *,
        silent: bool = False,
    ) -> None:
        """Take the registry that the session's plugins were loaded into, and its controller, if it has one.

        `silent`: observers are told nothing here, since another process of the same session tells them.
        """
        self.metrics: Final = SpecMetrics(lossy=resolved.verifier_lossy) if metrics is None else metrics
        self._registry: Final = registry
        self._resolved: Final = resolved
        self._controller: Final = controller
        self._silent: Final = silent
        self._observed: Final = not silent and registry.observed("specdec_step_finished")
        summed = not silent and registry.observed("specdec_session_finished")
        self.wanted: Final = self._observed or summed or controller is not None

    def started(self) -> None:
        """Tell observers that the session is ready."""
        if not self._silent:
            self._registry.broadcast("specdec_session_started", info=self._resolved.as_json())

    def step(self, stats: StepStats) -> None:
        """Count a step, and show it to the controller and to observers. Raises ValueError for contradicting figures."""
        self.metrics.observe(stats)
        if self._controller is not None:
            self._controller.observe(stats.copied())
        if self._observed:
            self._registry.broadcast("specdec_step_finished", step=stats)

    def finished(self) -> None:
        """Tell observers that the session has ended, with its counters."""
        if not self._silent:
            self._registry.broadcast("specdec_session_finished", summary=self.metrics.as_json())
