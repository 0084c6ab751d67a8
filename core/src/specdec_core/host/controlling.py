"""A controller as hosts call it: what it raises or returns out of contract costs its wish of one step."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from specdec_core.draft import RequestView, StepStats
from specdec_core.errors import ContractError
from specdec_core.host.handed import OnlyErrors
from specdec_core.protocols import Controller

Answer = TypeVar("Answer")


class ContainedController:
    """A controller; one that fails costs its wish of this step and one warning, unless `strict`."""

    def __init__(
        self, controller: Controller, name: str, *, strict: bool = False, logger: logging.Logger | None = None
    ) -> None:
        """Take the controller and the name under which the configuration asks for it."""
        self._controller: Final = controller
        self._name: Final = name
        self._strict: Final = strict
        self._logger: Final = logger or logging.getLogger(__name__)
        self._warned = False

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        """Return one whole number a request; the limits given if the controller fails."""

        def ask() -> list[int]:
            wished = [operator.index(wish) for wish in self._controller.limit(list(requests), list(k))]
            if len(wished) != len(k):
                message = f"limit returned {len(wished)} numbers for {len(k)} requests"
                raise ContractError(message)
            return wished

        wished = self._call("limit", ask)
        return list(k) if wished is None else wished

    def observe(self, stats: StepStats) -> None:
        """Show it a step."""
        self._call("observe", lambda: self._controller.observe(stats))

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
