"""`standard`: rejection sampling (Leviathan et al. 2023) over chains and trees; the output keeps its distribution.

At a node with the target's distribution p and children y_1..y_c, each child is accepted with min(1, p(y) / q(y)); a
rejection leaves max(p - q, 0) of p, normalised, for the next child, and takes the child out of q. Where no child is
accepted, one id is drawn from what is left. A child that was not drawn is a point mass: it is accepted with p(y), and a
rejection takes it out of p. The rule is exact for children drawn from the node's distribution without those before
them, for children drawn independently (one that repeats an earlier one is passed over), for point masses, and for any
mixture of these.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, Draft, Verdict
from specdec_core.noise import Noise, Purpose
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.distributions import Remainder
from specdec_plugin_verifiers.ending import Rejections, conclude, last_ids, read
from specdec_plugin_verifiers.tree import Families, Places, verdict
from specdec_plugin_verifiers.trial import Floats, Judge, Trial


class Standard:
    """Rejection sampling. On the host distributions are computed for reached nodes only, elsewhere for all at once."""

    draws_for_itself: Final = True

    def __init__(self, kernels: Kernels) -> None:
        """Take the session's kernels."""
        self._judge = Judge(kernels)
        self._greedy = Coupled(kernels)

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted path of each row; see `specdec_core.protocols.Verifier`."""
        if greedy.all():
            return self._greedy.verify(draft, logits, noise, target_draws, greedy)
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        return by_levels(trial) if trial.on_host else read(trial, trial.op("verify_standard")(trial))

    def verify_on_device(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Tensor:
        """Decide without a read; see `specdec_core.protocols.VerifiesOnDevice`."""
        if greedy.all():
            return self._greedy.verify_on_device(draft, logits, noise, target_draws, greedy)
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        result: Tensor = trial.op("verify_standard")(trial)
        return result


def by_levels(trial: Trial) -> Verdict:
    """Verify level by level, waiting for the device at each."""
    forest = trial.forest
    left = Rejections.none(len(forest.starts), forest.widest)

    def chance(rows: Places, owners: Places, families: Families) -> Floats:
        sampled = np.flatnonzero(~trial.greedy[owners])
        ratio = np.zeros(families.nodes.shape)
        if len(sampled):
            tokens, q_row = families.tokens[sampled], families.q_row[sampled]
            given = (trial.tensor(values) for values in (tokens, families.soft[sampled], q_row))
            found = trial.op("accept")(trial.distribution(rows[sampled]), *given, trial.distributions)
            ratio[sampled], alpha, beta = (part.cpu().numpy() for part in found)
            left.set(owners[sampled], alpha, beta, q_row, tokens)
        return trial.follow_greedy(ratio, rows, owners, families)

    path, stops = trial.walk(chance)
    return verdict(forest, path, stops, last_ids(trial, stops, left))


def at_once(trial: Trial) -> Verdict:
    """Verify all nodes without waiting for the device before the end."""
    return conclude(trial, *all_nodes(trial))


def all_nodes(trial: Trial) -> tuple[Tensor, Tensor, Remainder]:
    """Return p [R, V] at all logits rows, the accepted paths [n, depth], and what is left where they stop."""
    forest, children = trial.forest, trial.children()
    nodes, tokens, soft, q_row = children.nodes, children.tokens, children.soft, children.q_row
    p = torch.softmax(trial.logits.float(), dim=-1)
    ratio, alpha, beta = trial.op("accept")(p, tokens, soft, q_row, trial.distributions)
    if trial.greedy.any():
        certain = torch.where(tokens == trial.answers[:, None], torch.inf, 0.0).double()
        ratio = torch.where(trial.tensor(trial.greedy[trial.owners])[:, None], certain, ratio)
    uniforms = trial.op("uniform")(trial.noise, Purpose.ACCEPT, tokens)
    starts, own_row = trial.tensor(forest.starts), trial.tensor(forest.own_row)
    stops, path = trial.op("tree_walk")(nodes, own_row, ratio, uniforms, starts, forest.depth)
    return p, path, Remainder(stops, alpha[stops], beta[stops], q_row[stops], tokens[stops])
