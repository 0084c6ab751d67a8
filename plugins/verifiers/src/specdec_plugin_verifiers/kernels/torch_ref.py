"""The verifiers' ops in torch, which define them: acceptance ratios, remainders, draws from them, walks over trees."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_core.noise import Noise
from specdec_nn.ops.race.reference import race_reference, uniform_reference
from specdec_plugin_verifiers.distributions import Distributions, Remainder


def uniform(noise: Noise, purpose: int, words: Tensor) -> Tensor:
    """Return u in (0, 1), [R, c] float64, keyed by the noise of R rows and by `words` [R, c] (as token id)."""
    return uniform_reference(noise, purpose, words)


def weights(p: Tensor, left: Remainder, distributions: Distributions) -> Tensor:
    """Return the weights of remainders of p [B, V] float32, [n, V] float64; `excess` and `residual` make none."""
    result = left.alpha[:, None] * p[left.rows].double()
    soft = (left.q_row >= 0).nonzero()[:, 0]
    if len(soft):
        minus = left.beta[soft, None] * distributions.q[left.q_row[soft]].double()
        if distributions.ids is None:
            result[soft] -= minus
        else:
            result[soft[:, None], distributions.ids[None]] -= minus
    result.clamp_min_(0)
    row, place = (left.removed >= 0).nonzero(as_tuple=True)
    result[row, left.removed[row, place]] = 0.0
    return result


def excess(p: Tensor, left: Remainder, distributions: Distributions) -> Tensor:
    """Return what the weights of each remainder add up to, [n] float64."""
    return weights(p, left, distributions).sum(1)


def residual(p: Tensor, left: Remainder, distributions: Distributions, noise: Noise, purpose: int) -> Tensor:
    """Return one id a remainder, drawn by the race over its weights, [n] int64; -1 where no weight is above 0.

    `noise` has B rows, as p has.
    """
    rows = left.rows.cpu().numpy()
    own = Noise(noise.keys[rows], noise.positions[rows], noise.seq_index[rows])
    return race_reference(weights(p, left, distributions), own, purpose)


def accept(
    p: Tensor, tokens: Tensor, soft: Tensor, q_row: Tensor, distributions: Distributions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the acceptance ratios of children, and what is left of p when all of them were rejected.

    p       [A, V] float32, the target's distribution at A nodes
    tokens  [A, C] int64, ids of each node's children in the order of drawing, -1 = none
    soft    [A, C] bool: the child was drawn from the node's q, without the children before it; else a point mass
    q_row   [A] int64, the node's distribution, -1 = none

    A child is accepted iff u < ratio, given that those before it were rejected. The ratio is p(y) / q(y) of the
    distributions at that point: a rejection leaves max(p - q, 0) of p, and q without the child, both to be normalised.
    Above 1 it means certainty. A child equal to one before it says nothing new and has ratio 0. Second and third are
    alpha and beta [A] of the remainder after the last child, whose removed ids are `tokens`.
    """
    nodes, most = tokens.shape
    ids = tokens.clamp_min(0)
    target, drafted = p.gather(1, ids).double(), distributions.at(q_row, ids)
    alpha = torch.ones(nodes, dtype=torch.float64, device=p.device)
    beta, mass, total = torch.zeros_like(alpha), torch.ones_like(alpha), distributions.totals(q_row)
    ratio = torch.zeros(tokens.shape, dtype=torch.float64, device=p.device)
    for j in range(most):
        new = (tokens[:, j] >= 0) & ~(tokens[:, :j] == tokens[:, j : j + 1]).any(1)
        drawn = new & soft[:, j]
        weight = (alpha * target[:, j] - beta * drafted[:, j]).clamp_min(0)
        point = torch.where(mass > 0, weight / mass, 0.0)
        divided = torch.where((drafted[:, j] > 0) & (total > 0), point * total / drafted[:, j], 0.0)
        ratio[:, j] = torch.where(new, torch.where(drawn, divided, point), 0.0)
        live = drawn & (mass > 0) & (total > 0)
        alpha, beta = torch.where(live, alpha / mass, alpha), torch.where(live, beta / mass + 1 / total, beta)
        again = (new & (tokens[:, j + 1 :] >= 0).any(1)).nonzero()[:, 0]
        if len(again):
            # Summed over what remains: a difference would be rounding where the children have nearly all of it.
            left = Remainder(again, alpha[again], beta[again], q_row[again], tokens[again, : j + 1])
            mass[again], total[again] = (
                excess(p, left, distributions),
                distributions.totals(q_row[again], tokens[again, : j + 1]),
            )
    return ratio, alpha, beta


def tree_walk(
    children: Tensor, own_row: Tensor, ratio: Tensor, uniforms: Tensor, starts: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Walk n trees down to where no child is accepted; returns the rows of the last nodes and the nodes on the way.

    children  [R, C] int64, nodes below the node of each logits row, in order of testing; -1 = none
    own_row   [N] int64, logits row of each node
    ratio, uniforms  [R, C] float64; child j is accepted iff it is the first with uniforms < ratio
    starts    [n] int64, logits rows of the roots
    Returns [n] int64, and [n, depth] int64 with -1 after the end.
    """
    row = starts
    path = torch.full((len(starts), depth), -1, dtype=torch.int64, device=starts.device)
    most = children.shape[1]
    order = torch.arange(most, device=starts.device)
    for level in range(depth):
        below = children[row]
        accepted = (below >= 0) & (uniforms[row] < ratio[row])
        first = torch.where(accepted, order, most).amin(1, keepdim=True)
        node = torch.where(first < most, below.gather(1, first.clamp_max(most - 1)), -1)[:, 0]
        path[:, level] = node
        row = torch.where(node >= 0, own_row[node.clamp_min(0)], row)
    return row, path
