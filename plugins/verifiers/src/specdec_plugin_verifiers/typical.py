"""`typical`: accepts a draft that is likely enough under the target (Cai et al. 2024, Medusa); lossy."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, Draft, Verdict
from specdec_core.noise import Noise
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.ending import last_ids
from specdec_plugin_verifiers.tree import Forest, Places, verdict
from specdec_plugin_verifiers.trial import Floats, Judge, Trial

INSIDE_LOG = 1e-5  # keeps the logarithm of 0 finite, as the reference does


def thresholds(p: Tensor, threshold: float, alpha: float) -> Tensor:
    """Return min(threshold, alpha exp(-H(p))), which an accepted draft's probability is above, [a] for p [a, V]."""
    entropy = -(p * (p + INSIDE_LOG).log()).sum(-1)
    return (alpha * (-entropy).exp()).clamp_max(threshold)


class Typical:
    """Accepts drafts up to the first that is not likely enough; in its place stands the target's most likely id.

    In a tree the longest path of such drafts is accepted, among equally long ones the one with the largest sum of
    log p, and the first of equal ones.
    """

    draws_for_itself: Final = True

    def __init__(self, kernels: Kernels, threshold: float, alpha: float) -> None:
        """Take the session's kernels, and the options `posterior_threshold` and `posterior_alpha`."""
        self._judge = Judge(kernels)
        self._greedy = Coupled(kernels)
        self._threshold = threshold
        self._alpha = alpha

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted path of each row; see `specdec_core.protocols.Verifier`."""
        if greedy.all():
            return self._greedy.verify(draft, logits, noise, target_draws, greedy)
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        path, stops = longest(trial.forest, *self._tests(trial))
        return verdict(trial.forest, path, stops, last_ids(trial, stops, None))

    def _tests(self, trial: Trial) -> tuple[BoolArray, Floats]:
        """Return of each node whether it stands if its parent does, and its log p."""
        forest = trial.forest
        p = trial.distribution(np.arange(len(trial.logits)))
        at = trial.tensor(forest.parent_row)
        likely = p[at, trial.tensor(forest.tokens)]
        enough = likely > thresholds(p, self._threshold, self._alpha)[at]
        both = torch.stack([enough.double(), likely.double()]).cpu().numpy()
        stands = both[0] > 0
        plain = np.flatnonzero(trial.greedy[trial.owners[forest.parent_row]])
        if len(plain):
            stands[plain] = forest.tokens[plain] == trial.greedy_draws(forest.parent_row[plain])
        with np.errstate(divide="ignore"):
            return stands, np.log(both[1])


def longest(forest: Forest, stands: BoolArray, log_p: Floats) -> tuple[Places, Places]:
    """Return the best path of standing nodes of each tree, [n, depth] with -1 after its end, and the rows [n] it ends.

    The best is the longest, then the one with the largest sum of `log_p` [N], then the one that ends first.
    """
    stops = forest.starts.copy()
    before = np.full(len(forest.first_child), -1, np.int64)  # of each logits row that is reached, its node
    score = np.full(len(forest.first_child), -np.inf)
    score[stops] = 0.0
    reached = np.zeros(len(forest.first_child), np.bool_)
    reached[stops] = True
    tree = np.repeat(np.arange(len(stops)), np.diff([*forest.starts, len(forest.first_child)]))
    depth = 0
    while len(nodes := np.flatnonzero(reached[forest.parent_row] & stands)):
        rows = forest.own_row[nodes]
        score[rows] = score[forest.parent_row[nodes]] + log_p[nodes]
        before[rows] = nodes
        # The last one written wins: the largest score, and of equal ones the first row.
        order = np.lexsort((-rows, score[rows]))
        stops[tree[rows[order]]] = rows[order]
        reached = np.zeros_like(reached)
        reached[rows] = True
        depth += 1
    path = np.full((len(stops), depth), -1, np.int64)
    for i, row in enumerate(stops.tolist()):
        nodes_up = []
        while (node := int(before[row])) >= 0:
            nodes_up.append(node)
            row = int(forest.parent_row[node])
        path[i, : len(nodes_up)] = nodes_up[::-1]
    return path, stops
