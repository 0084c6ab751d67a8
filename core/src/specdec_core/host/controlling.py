"""A controller as hosts call it: what it raises or returns out of contract costs its wish of one step."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from specdec_core.draft import RequestView
from specdec_core.errors import ContractError
from specdec_core.host.costs import StepCosts
from specdec_core.host.handed import OnlyErrors
from specdec_core.protocols import Controller, ForgetsRequests, ReadsCosts, Trims
from specdec_core.stats import StepStats

Answer = TypeVar("Answer")


class ContainedController:
    """A controller; one that fails costs its wish of this step and one warning, unless `strict`.

    reads_costs  it decides by measured times, which are gathered here for it
    trims        it cuts drafts
    """

    def __init__(
        self, controller: Controller, name: str, *, strict: bool = False, logger: logging.Logger | None = None
    ) -> None:
        """Take the controller and the name under which the configuration asks for it."""
        self._controller: Final = controller
        self._name: Final = name
        self._strict: Final = strict
        self._logger: Final = logger or logging.getLogger(__name__)
        self._warned = False
        self._costs: Final = StepCosts()
        self._most = 0  # the most drafts that a request could get in the call for drafts of this step
        self.reads_costs: Final = isinstance(controller, ReadsCosts)
        self.trims: Final = isinstance(controller, Trims)
        self._forgets: Final = controller if isinstance(controller, ForgetsRequests) else None
        if isinstance(controller, ReadsCosts):
            self._call("use_costs", lambda: controller.use_costs(self._costs))

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        """Return one whole number a request; the limits given if the controller fails."""
        wished = self._call("limit", lambda: self._numbers("limit", self._controller.limit(list(requests), list(k)), k))
        limits = list(k) if wished is None else wished
        self._most = max((min(most, wish) for most, wish in zip(k, limits, strict=True)), default=0)
        return limits

    def trim(self, requests: Sequence[RequestView], confidence: Sequence[npt.NDArray[np.float32]]) -> Sequence[int]:
        """Return how many drafts of each request are kept; all if the controller fails or does not trim."""
        lengths = [len(part) for part in confidence]
        if not self.trims:
            return lengths
        controller = cast("Trims", self._controller)
        kept = self._call(
            "trim", lambda: self._numbers("trim", controller.trim(list(requests), list(confidence)), lengths)
        )
        return lengths if kept is None else kept

    def finished(self, request_ids: Sequence[str]) -> None:
        """Tell it which requests ended."""
        forgets = self._forgets
        if forgets is not None:
            self._call("finished", lambda: forgets.finished(list(request_ids)))

    def observe(self, stats: StepStats) -> None:
        """Show it a step."""
        if self.reads_costs:
            self._costs.observe(stats, self._most)
        self._most = 0
        self._call("observe", lambda: self._controller.observe(stats))

    def _numbers(self, call: str, answer: Sequence[int], asked: Sequence[int]) -> list[int]:
        numbers = [operator.index(number) for number in answer]
        if len(numbers) != len(asked):
            message = f"{call} returned {len(numbers)} numbers for {len(asked)} requests"
            raise ContractError(message)
        return numbers

    def _call(self, call: str, function: Callable[[], Answer]) -> Answer | None:
        try:
            with OnlyErrors(f"controller {self._name!r}", call):
                return function()
        except Exception as error:
            if self._strict:
                raise
            if not self._warned:
                self._warned = True
                self._logger.warning(
                    "controller %r failed in %s (%s: %s); the step goes on as if there were none (logged once)",
                    self._name,
                    call,
                    type(error).__name__,
                    error,
                )
            return None
