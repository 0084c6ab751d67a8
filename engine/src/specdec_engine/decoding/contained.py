"""The verifier, called so that what it raises is an error in any case."""

from __future__ import annotations

from torch import Tensor

from specdec_core.draft import BoolArray, Draft, Verdict
from specdec_core.host.handed import OnlyErrors
from specdec_core.noise import Noise
from specdec_core.protocols import DrawsForItself, Verifier, VerifiesOnDevice


class ContainedVerifier:
    """A verifier; without its verdict a step cannot go on, so what it raises is raised, as an error in any case."""

    def __init__(self, verifier: Verifier, name: str) -> None:
        """Keep the verifier and its name."""
        self._verifier = verifier
        self.draws_for_itself = isinstance(verifier, DrawsForItself) and verifier.draws_for_itself
        self.is_on_device = isinstance(verifier, VerifiesOnDevice)
        self._guard = OnlyErrors(f"verifier {name!r}", "verify")

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Verify drafts."""
        with self._guard:
            return self._verifier.verify(draft, logits, noise, target_draws, greedy)

    def verify_on_device(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Tensor:
        """Verify drafts without a read, which only those can that say so by `is_on_device`."""
        assert isinstance(self._verifier, VerifiesOnDevice)
        with self._guard:
            return self._verifier.verify_on_device(draft, logits, noise, target_draws, greedy)
