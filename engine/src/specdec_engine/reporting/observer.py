"""Tells everybody who wants to know of a finished step: the metrics, the controller, observers of other plugins."""

from __future__ import annotations

import copy

from specdec_core.draft import StepStats
from specdec_core.metrics import SpecMetrics
from specdec_core.protocols import Controller
from specdec_core.registry.loader import Registry


class StepObserver:
    """Called with the figures of each step."""

    def __init__(self, metrics: SpecMetrics, registry: Registry) -> None:
        """Count in `metrics`; `controller` may be set before the first step."""
        self.metrics = metrics
        self.controller: Controller | None = None
        self._registry = registry
        self._observed = registry.observed("specdec_step_finished")

    def __call__(self, stats: StepStats) -> None:
        """Count a step and pass it on."""
        self.metrics.observe(stats)
        if self.controller is not None:
            self.controller.observe(copy.deepcopy(stats))
        if self._observed:
            self._registry.broadcast("specdec_step_finished", step=stats)
