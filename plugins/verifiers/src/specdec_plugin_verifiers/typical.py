"""`typical`: accepts a draft that is likely enough under the target (Cai et al. 2024, Medusa); lossy."""

from __future__ import annotations

from torch import Tensor

from specdec.draft import BoolArray, Draft, Verdict
from specdec.kernels import Kernels
from specdec.noise import Noise
from specdec_plugin_verifiers.coupled import greedy_verdict
from specdec_plugin_verifiers.ending import last_ids
from specdec_plugin_verifiers.tree import Families, Places, verdict
from specdec_plugin_verifiers.trial import Floats, Judge, refuse_trees

INSIDE_LOG = 1e-5  # keeps the logarithm of 0 finite, as the reference does


def thresholds(p: Tensor, threshold: float, alpha: float) -> Tensor:
    """Return min(threshold, alpha exp(-H(p))), which an accepted draft's probability is above, [a] for p [a, V]."""
    entropy = -(p * (p + INSIDE_LOG).log()).sum(-1)
    return (alpha * (-entropy).exp()).clamp_max(threshold)


class Typical:
    """Accepts drafts up to the first that is not likely enough; in its place stands the target's most likely id."""

    def __init__(self, kernels: Kernels, threshold: float, alpha: float) -> None:
        """Take the session's kernels, and the options `posterior_threshold` and `posterior_alpha`."""
        self._judge = Judge(kernels)
        self._threshold = threshold
        self._alpha = alpha

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted length of each row; see `specdec.protocols.Verifier`. Raises ContractError for trees."""
        refuse_trees(draft, "typical")
        if greedy.all():
            return greedy_verdict(draft, logits, noise, target_draws, greedy)
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)

        def chance(rows: Places, owners: Places, families: Families) -> Floats:
            p = trial.law(rows)
            likely = p.gather(1, trial.tensor(families.tokens))
            stands = likely > thresholds(p, self._threshold, self._alpha)[:, None]
            return trial.follow_greedy(stands.double().cpu().numpy(), rows, owners, families)

        path, stops = trial.walk(chance)
        return verdict(trial.forest, path, stops, last_ids(trial, stops, None))
