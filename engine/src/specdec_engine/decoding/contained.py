"""The objects of other plugins than the method's, called so that none of them can end the engine."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from specdec_core.draft import BoolArray, Draft, RequestView, StepStats, Verdict
from specdec_core.errors import ContractError
from specdec_core.host.handed import OnlyErrors
from specdec_core.noise import Noise
from specdec_core.protocols import Controller, Verifier

logger = logging.getLogger("specdec_engine")


class ContainedVerifier:
    """A verifier; without its verdict a step cannot go on, so what it raises is raised, as an error in any case."""

    def __init__(self, verifier: Verifier, name: str) -> None:
        """Keep the verifier and its name."""
        self._verifier = verifier
        self._guard = OnlyErrors(f"verifier {name!r}", "verify")

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Verify drafts."""
        with self._guard:
            return self._verifier.verify(draft, logits, noise, target_draws, greedy)


class ContainedController:
    """A controller; one that fails costs its wish of this step and one warning, unless `strict`."""

    def __init__(self, controller: Controller, name: str, *, strict: bool) -> None:
        """Keep the controller and its name."""
        self._controller = controller
        self._name = name
        self._strict = strict
        self._warned = False

    def limit(self, requests: Sequence[RequestView], k: Sequence[int]) -> Sequence[int]:
        """Return one whole number a request; the limits given if the controller fails."""

        def ask() -> list[int]:
            wished = [operator.index(wish) for wish in self._controller.limit(list(requests), list(k))]
            if len(wished) != len(k):
                message = f"limit returned {len(wished)} numbers for {len(k)} requests"
                raise ContractError(message)
            return wished

        wished: list[int] | None = self._call("limit", ask)
        return list(k) if wished is None else wished

    def observe(self, stats: StepStats) -> None:
        """Show it a step."""
        self._call("observe", lambda: self._controller.observe(stats))

    def _call(self, call: str, function: Callable[[], Any]) -> Any:
        try:
            with OnlyErrors(f"controller {self._name!r}", call):
                return function()
        except Exception as error:
            if self._strict:
                raise
            if not self._warned:
                self._warned = True
                logger.warning(
                    "controller %r failed in %s (%s: %s); the step goes on as if there were none (this is said once)",
                    self._name,
                    call,
                    type(error).__name__,
                    error,
                )
            return None
