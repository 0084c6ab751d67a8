"""`fly`: `standard`, but a rejection at an undecided place is overruled if the drafts after it are accepted; lossy.

Training-free loosely speculative decoding (Li et al. 2025, arXiv:2511.22972, section 3), in the form that vLLM 0.33 has
under this name, which also covers sampled requests. Every draft of a chain y_1..y_m is first tried as if all before it
were text: greedily, accepted iff it is the most likely id; sampled, iff u_i < p_i(y_i) / q_i(y_i). A rejection at i is
overruled iff

- p_i(y_i) > 0,
- the target is undecided: the sum of -p log p (nats) over the `top_k` largest probabilities of p_i is at least
  `threshold`; they are not normalised again,
- there are `window` more drafts, i + window <= m, and each of the drafts i + 1 .. i + window was accepted when tried.

The drafts up to the first rejection that is not overruled are accepted; what follows is drawn as in `standard`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, Draft, Verdict
from specdec_core.noise import Noise
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.ending import Rejections, last_ids
from specdec_plugin_verifiers.tree import Places, verdict
from specdec_plugin_verifiers.trial import Floats, Judge, Trial, refuse_trees


def entropies(p: Tensor, top_k: int) -> Tensor:
    """Return the entropy in nats over the `top_k` largest probabilities of each row, [a] float64 for p [a, V]."""
    largest = torch.topk(p, min(top_k, p.shape[1]), dim=-1).values.double()
    total: Tensor = torch.special.entr(largest).sum(-1)
    return total


class Fly:
    """Overrules rejections; greedy requests, too, get ids that plain decoding would not have chosen."""

    draws_for_itself: Final = True

    def __init__(self, kernels: Kernels, window: int, threshold: float, top_k: int) -> None:
        """Take the session's kernels, and the three numbers of the rule."""
        self._judge = Judge(kernels)
        self._window = window
        self._threshold = threshold
        self._top_k = top_k

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted length of each row.

        See `specdec_core.protocols.Verifier`. Raises ContractError for trees.
        """
        refuse_trees(draft, "fly")
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        forest = trial.forest
        tries = Tries.of(trial, self._top_k)
        lengths = np.diff([*forest.first, len(forest.tokens)])
        kept = tries.accepted | self._overruled(tries, np.repeat(forest.first + lengths, lengths))
        place = np.arange(lengths.max(initial=0))
        whole = np.zeros((len(lengths), len(place)), np.bool_)
        whole[place < lengths[:, None]] = kept
        count = np.logical_and.accumulate(whole, axis=1).sum(1)
        path = np.where(place < count[:, None], forest.first[:, None] + place, -1)
        at = np.flatnonzero(count < lengths)
        stops = forest.starts + count
        return verdict(forest, path, stops, last_ids(trial, stops, tries.left(at, (forest.first + count)[at])))

    def _overruled(self, tries: Tries, ends: Places) -> BoolArray:
        """Return which rejected nodes [N] are kept; `ends` [N] is the first node after each node's chain."""
        after = np.arange(len(ends)) + 1
        last = after + self._window
        before = np.concatenate([[0], tries.accepted.cumsum()])
        all_accepted = before[np.minimum(last, len(ends))] - before[after] == self._window
        undecided = tries.possible & (tries.entropy >= self._threshold)
        overruled: BoolArray = undecided & (last <= ends) & all_accepted
        return overruled


@dataclass(slots=True)
class Tries:
    """What came of each of the N drafts of a call, tried as if all before it were text.

    accepted  [N] bool
    possible  [N] bool, the target gives the id a probability above 0
    entropy   [N] of the target's distribution at its place, over the largest probabilities
    rejected  what is left to draw from where it is rejected: alpha, beta, q_row, removed
    """

    accepted: BoolArray
    possible: BoolArray
    entropy: Floats
    rejected: tuple[Floats, Floats, Places, Places]
    rows: int

    @classmethod
    def of(cls, trial: Trial, top_k: int) -> Tries:
        """Try the drafts of a call."""
        forest = trial.forest
        rows, count = forest.parent_row, len(forest.starts)
        if not len(rows):
            none: Any = np.zeros(0)
            return cls(none.astype(np.bool_), none.astype(np.bool_), none, (none, none, none, none), count)
        families = forest.families(rows)
        p = trial.distribution(rows)
        given = (trial.tensor(values) for values in (families.tokens, families.soft, families.q_row))
        ratio, alpha, beta = (part.cpu().numpy() for part in trial.op("accept")(p, *given, trial.distributions))
        ratio = trial.follow_greedy(ratio, rows, trial.owners[rows], families)
        accepted = (trial.uniforms(rows, families.tokens) < ratio)[:, 0]
        likely = p.gather(1, trial.tensor(families.tokens))[:, 0]
        both = torch.stack([likely.double(), entropies(p, top_k)]).cpu().numpy()
        return cls(accepted, both[0] > 0, both[1], (alpha, beta, families.q_row, families.tokens), count)

    def left(self, at: Places, nodes: Places) -> Rejections:
        """Return what is left at batch rows `at`, whose chains end with the rejection of `nodes`."""
        left = Rejections.none(self.rows, 1)
        if len(at):
            alpha, beta, q_row, removed = self.rejected
            left.set(at, alpha[nodes], beta[nodes], q_row[nodes], removed[nodes])
        return left
