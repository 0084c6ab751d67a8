"""`synthetic`: accepts drafts at given rates, whatever they are, to see what a rate would mean for speed; lossy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, Draft, Verdict
from specdec_core.noise import Noise
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.ending import Rejections, last_ids
from specdec_plugin_verifiers.tree import Families, Places, verdict
from specdec_plugin_verifiers.trial import Floats, Judge, refuse_trees


def conditional(rates: Sequence[float]) -> Floats:
    """Return the chance of each draft, given that those before it stand, for rates a_1 >= a_2 >= ...: a_i / a_{i-1}."""
    chances = [after / before if before > 0 else 0.0 for before, after in zip((1.0, *rates), rates, strict=False)]
    return np.array(chances)


class Synthetic:
    """Accepts draft i with a chance that depends on i alone; a rejection is followed as in `standard`."""

    draws_for_itself: Final = True

    def __init__(self, kernels: Kernels, rates: Sequence[float]) -> None:
        """Take the session's kernels, and the chance that the first i drafts are all accepted, for i = 1..k."""
        self._judge = Judge(kernels)
        self._chances = conditional(rates)

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted length of each row.

        See `specdec_core.protocols.Verifier`. Raises ContractError for trees.
        """
        refuse_trees(draft, "synthetic")
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        left = Rejections.none(len(trial.forest.starts), 1)

        def chance(rows: Places, owners: Places, families: Families) -> Floats:
            totals = trial.distributions.totals(torch.from_numpy(families.q_row)).cpu().numpy()
            beta = np.where(families.q_row >= 0, 1.0 / totals, 0.0)
            left.set(owners, 1.0, beta, families.q_row, np.where(families.soft, -1, families.tokens))
            chances: Floats = self._chances[rows - trial.forest.starts[owners]][:, None]
            return chances

        path, stops = trial.walk(chance)
        return verdict(trial.forest, path, stops, last_ids(trial, stops, left))
