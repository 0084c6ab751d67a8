"""`block`: chains verified as a block (Sun et al. 2024); the output keeps its distribution, and no rule accepts more.

With ratios r_i = p_i(x_i) / q_i(x_i), b_0 = 1, b_i = min(1, b_{i-1} r_i), and S_i = sum_v max(b_i p_{i+1}(v) -
q_{i+1}(v), 0), the first tau drafts stand, tau being the largest i with u_i < h_i; h_i = S_i / (S_i + 1 - b_i), and
h_m = b_m for the last one. What follows is a bonus if tau = m, else drawn from max(b_tau p_{tau+1} - q_{tau+1}, 0). A
draft that was not drawn has a point mass as q.

All m tests are made, so later positions have been looked at when they are drafted again in the next step. Hence the
uniforms are keyed by the position at which the step began besides their own, and drafts must be drawn afresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import BoolArray, Draft, Verdict
from specdec_core.noise import Noise, Purpose
from specdec_core.registry.kernels import Kernels
from specdec_plugin_verifiers.coupled import Coupled
from specdec_plugin_verifiers.distributions import Remainder
from specdec_plugin_verifiers.ending import conclude, read
from specdec_plugin_verifiers.tree import Places
from specdec_plugin_verifiers.trial import Children, Judge, Trial, refuse_trees


class Block:
    """Block verification; trees have no such rule."""

    draws_for_itself: Final = True

    def __init__(self, kernels: Kernels) -> None:
        """Take the session's kernels."""
        self._judge = Judge(kernels)
        self._greedy = Coupled(kernels)

    def verify(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Verdict:
        """Return the accepted length of each row.

        See `specdec_core.protocols.Verifier`. Raises ContractError for trees.
        """
        refuse_trees(draft, "block")
        if greedy.all():
            return self._greedy.verify(draft, logits, noise, target_draws, greedy)
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        return chain_of_tests(trial) if trial.on_host else read(trial, trial.op("verify_block")(trial))

    def verify_on_device(
        self, draft: Draft, logits: Tensor, noise: Noise, target_draws: Tensor | None, greedy: BoolArray
    ) -> Tensor:
        """Decide without a read; see `specdec_core.protocols.VerifiesOnDevice`. Raises ContractError for trees."""
        refuse_trees(draft, "block")
        if greedy.all():
            return self._greedy.verify_on_device(draft, logits, noise, target_draws, greedy)
        trial = self._judge.trial(draft, logits, noise, target_draws, greedy)
        result: Tensor = trial.op("verify_block")(trial)
        return result


def prefix_products(ratio: Tensor) -> Tensor:
    """Return b_1..b_m [n, m] for ratios r_1..r_m [n, m]: b_i = min(1, b_{i-1} r_i), b_0 = 1."""
    b = torch.empty_like(ratio)
    before = torch.ones_like(ratio[:, 0])
    for i in range(ratio.shape[1]):
        b[:, i] = before = (before * ratio[:, i]).clamp_max(1.0)
    return b


def chances(b: Tensor, mass: Tensor, last: Tensor) -> Tensor:
    """Return h [n, m] for b [n, m], S [n, m] and the mask [n, m] of each chain's last draft."""
    rest = mass + (1.0 - b)  # in this order: 1 - b is exact near 1, where a small mass would be lost in mass + 1
    h = torch.where(rest > 0, mass / torch.where(rest > 0, rest, 1.0), 1.0)
    return torch.where(last, b, h)


def remainders(trial: Trial, families: Children, rows: Tensor, b: Tensor) -> Remainder:
    """Return max(b p - q, 0) at logits rows [a], b [a]; for a point mass, p without the id."""
    distribution = families.q_row[rows]
    beta = torch.where(distribution >= 0, 1.0 / trial.distributions.totals(distribution), 0.0)
    return Remainder(rows, b, beta, distribution, torch.where(families.soft[rows], -1, families.tokens[rows]))


@dataclass(slots=True)
class BlockTests:
    """The tests of n chains of at most m drafts; everything but the uniforms.

    p         [R, V] float32, the target's distribution at each logits row
    families  of all logits rows
    b, h      [n, m] float64; 0 beyond a chain's end
    """

    p: Tensor
    families: Children
    b: Tensor
    h: Tensor

    @classmethod
    def of(cls, trial: Trial, place: Places) -> BlockTests:
        """Prepare the tests of a call; `place` is 0..m - 1."""
        forest = trial.forest
        lengths = np.diff([*forest.first, len(forest.tokens)])
        there, last = place < lengths[:, None], place == lengths[:, None] - 1
        rows = trial.tensor(np.where(there, forest.starts[:, None] + place, 0))  # where each draft is tested
        families, p = trial.children(), torch.softmax(trial.logits.float(), dim=-1)
        b = prefix_products(torch.where(trial.tensor(there), _ratios(trial, families, p)[rows], 0.0))
        some = trial.tensor(np.flatnonzero(there & ~last))
        following = remainders(trial, families, rows.flatten()[some] + 1, b.flatten()[some])
        mass = torch.zeros_like(b)
        mass.view(-1)[some] = trial.op("excess")(p, following, trial.distributions)
        return cls(p, families, b, torch.where(trial.tensor(there), chances(b, mass, trial.tensor(last)), 0.0))


def chain_of_tests(trial: Trial) -> Verdict:
    """Verify all chains of a call, without waiting for a device before the end."""
    return conclude(trial, *all_tests(trial))


def all_tests(trial: Trial) -> tuple[Tensor, Tensor, Remainder]:
    """Return p [R, V] at all logits rows, the accepted nodes [n, m], and what is left where chains stop."""
    forest = trial.forest
    place = np.arange(np.diff([*forest.first, len(forest.tokens)]).max(initial=1))
    tests = BlockTests.of(trial, place)
    rows = np.minimum(forest.starts[:, None] + place, len(trial.logits) - 1)
    order = trial.tensor(place + 1)
    tau = torch.where(_uniforms(trial)[trial.tensor(rows)] < tests.h, order, 0).amax(1)
    nodes = torch.where(order <= tau[:, None], trial.tensor(forest.first)[:, None] + order - 1, -1)
    reached = torch.where(tau > 0, tests.b.gather(1, (tau - 1).clamp_min(0)[:, None])[:, 0], 1.0)
    left = remainders(trial, tests.families, trial.tensor(forest.starts) + tau, reached)
    return tests.p, nodes, left


def _ratios(trial: Trial, families: Children, p: Tensor) -> Tensor:
    """Return the ratio of the draft that is tested at each logits row, [R].

    For greedy requests it is 1 or 0, and so are b and h.
    """
    ratio: Tensor = trial.op("accept")(p, families.tokens, families.soft, families.q_row, trial.distributions)[0][:, 0]
    if trial.greedy.any():
        certain = (families.tokens[:, 0] == trial.answers).double()
        ratio = torch.where(trial.tensor(trial.greedy[trial.owners]), certain, ratio)
    return ratio


def _uniforms(trial: Trial) -> Tensor:
    """Return u [R], keyed by the position where the step began besides the row's own."""
    began = trial.noise.positions[trial.forest.starts].astype(np.int64)
    u: Tensor = trial.op("uniform")(trial.noise, Purpose.ACCEPT, trial.tensor(began[trial.owners][:, None]))
    return u[:, 0]
