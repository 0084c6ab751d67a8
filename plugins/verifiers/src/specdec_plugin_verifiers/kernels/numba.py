"""The verifiers' ops on a CPU, each in one pass over what it needs; their definitions are in torch_ref."""

# mypy: disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numba import prange
from torch import Tensor

from specdec_core.noise import Noise
from specdec_nn.ops.cpu.jit import Jit
from specdec_nn.ops.noise import numba as noise_numba
from specdec_nn.ops.noise.numba import HALF, MASK
from specdec_nn.ops.race.numba import STRETCH, TASK, race_stretch
from specdec_nn.turns import one_at_a_time
from specdec_plugin_verifiers.distributions import Distributions, Remainder
from specdec_plugin_verifiers.kernels import torch_ref

# Kernels of specdec_nn are inlined here.
njit = Jit("specdec_plugin_verifiers.kernels", "specdec_nn.ops", "specdec_core.noise").njit

LANES: Final = 64  # partial sums of a row, added up at its end; independent of the machine


@njit(nogil=True, error_model="numpy")
def _uniform(keys: Any, positions: Any, seq_index: Any, purpose: int, words: Any, out: Any) -> None:
    for r in range(words.shape[0]):
        k0, k1 = keys[r] & MASK, keys[r] >> HALF
        position, seq = np.uint64(positions[r]) & MASK, np.uint64(seq_index[r]) & MASK
        for c in range(words.shape[1]):
            out[r, c] = noise_numba.uniform(
                k0, k1, np.uint64(words[r, c]) & MASK, position, seq, np.uint64(purpose) & MASK
            )


@njit(nogil=True, error_model="numpy", inline="always")
def _stretch(p: Any, q: Any, column: Any, first: int, alpha: float, beta: float, out: Any) -> None:
    """Write max(alpha p - beta q, 0) of the ids from `first` on, as many as `out` has; q and column may be empty."""
    if beta == 0.0:
        for n in range(len(out)):
            out[n] = max(alpha * np.float64(p[first + n]), 0.0)
    elif len(column) == 0:
        for n in range(len(out)):
            out[n] = max(alpha * np.float64(p[first + n]) - beta * np.float64(q[first + n]), 0.0)
    else:
        for n in range(len(out)):
            c = column[first + n]
            taken = beta * np.float64(q[c]) if c >= 0 else 0.0
            out[n] = max(alpha * np.float64(p[first + n]) - taken, 0.0)


@njit(nogil=True, error_model="numpy", inline="always")
def _weight(p: Any, q: Any, column: Any, token: int, alpha: float, beta: float) -> Any:
    return max(alpha * np.float64(p[token]) - beta * _distribution(q, column, token), 0.0)


@njit(nogil=True, error_model="numpy", inline="always")
def _distribution(q: Any, column: Any, token: int) -> Any:
    """Return q of a target id; 0 without a distribution, or where no column has the id."""
    if len(q) == 0:
        return 0.0
    if len(column) == 0:
        return np.float64(q[token])
    return np.float64(q[column[token]]) if column[token] >= 0 else 0.0


@njit(nogil=True, error_model="numpy")
def _excess_row(p: Any, q: Any, column: Any, alpha: float, beta: float, removed: Any) -> float:
    sums, some = np.zeros(LANES), np.empty(LANES)
    for first in range(0, len(p), LANES):
        part = some[: min(LANES, len(p) - first)]
        _stretch(p, q, column, first, alpha, beta, part)
        for j in range(len(removed)):
            if first <= removed[j] < first + len(part):
                part[removed[j] - first] = 0.0
        for n in range(len(part)):
            sums[n] += part[n]
    total = 0.0
    for n in range(LANES):
        total += sums[n]
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def _rest_of_distribution(q: Any, column: Any, removed: Any) -> float:
    """Return the sum of q over all columns but those of removed ids, which are few."""
    sums, some = np.zeros(LANES), np.empty(LANES)
    for first in range(0, len(q), LANES):
        part = some[: min(LANES, len(q) - first)]
        for n in range(len(part)):
            part[n] = np.float64(q[first + n])
        for j in range(len(removed)):
            c = removed[j] if len(column) == 0 or removed[j] < 0 else column[removed[j]]
            if first <= c < first + len(part):
                part[c - first] = 0.0
        for n in range(len(part)):
            sums[n] += part[n]
    total = 0.0
    for n in range(LANES):
        total += sums[n]
    return total


@njit(nogil=True, inline="always")
def _earlier(tokens: Any, j: int) -> bool:
    """Return whether token j stands before place j too."""
    found = False
    for i in range(j):
        found = found or tokens[i] == tokens[j]
    return found


@one_at_a_time
@njit(parallel=True, nogil=True, error_model="numpy")
def _excess(p: Any, q: Any, column: Any, rows: Any, alpha: Any, beta: Any, q_row: Any, removed: Any, out: Any) -> None:
    for r in prange(len(rows)):
        distribution = q[q_row[r]] if q_row[r] >= 0 else q[0, :0]
        out[r] = _excess_row(p[rows[r]], distribution, column, alpha[r], beta[r], removed[r])


@one_at_a_time
@njit(parallel=True, nogil=True, error_model="numpy")
def _residual(
    p: Any, q: Any, column: Any, rows: Any, alpha: Any, beta: Any, q_row: Any, removed: Any,
    keys: Any, positions: Any, seq_index: Any, purpose: int, winners: Any,
) -> None:  # fmt: skip
    vocabulary = p.shape[1]
    tasks = (vocabulary + TASK - 1) // TASK
    scores, ids = np.empty((len(rows), tasks), np.float64), np.empty((len(rows), tasks), np.int64)
    for task in prange(len(rows) * tasks):
        r, part = task // tasks, task % tasks
        row, distribution = rows[r], q[q_row[r]] if q_row[r] >= 0 else q[0, :0]
        position, seq = np.uint64(positions[row]) & MASK, np.uint64(seq_index[row]) & MASK
        some, scratch = np.empty(STRETCH, np.float64), np.empty(STRETCH, np.float64)
        best, winner = 0.0, -1
        for first in range(part * TASK, min((part + 1) * TASK, vocabulary), STRETCH):
            part_of = some[: min(STRETCH, vocabulary - first)]
            _stretch(p[row], distribution, column, first, alpha[r], beta[r], part_of)
            for j in range(removed.shape[1]):
                if first <= removed[r, j] < first + len(part_of):
                    part_of[removed[r, j] - first] = 0.0
            score, found = race_stretch(part_of, first, keys[row], position, seq, np.uint64(purpose) & MASK, scratch)
            if found >= 0 and (score > best or winner < 0):
                best, winner = score, found
        scores[r, part], ids[r, part] = best, winner
    for r in range(len(rows)):
        best, winner = 0.0, -1
        for part in range(tasks):
            if ids[r, part] >= 0 and (scores[r, part] > best or winner < 0):
                best, winner = scores[r, part], ids[r, part]
        winners[r] = winner


@njit(nogil=True, error_model="numpy")
def _accept(
    p: Any, q: Any, totals: Any, column: Any, tokens: Any, soft: Any, q_row: Any, ratio: Any, alphas: Any, betas: Any
) -> None:
    for a in range(len(p)):
        distribution = q[q_row[a]] if q_row[a] >= 0 else q[0, :0]
        alpha, beta, mass = 1.0, 0.0, 1.0
        total = totals[q_row[a]] if q_row[a] >= 0 else 1.0
        for j in range(tokens.shape[1]):
            token = tokens[a, j]
            ratio[a, j] = 0.0
            if token < 0 or _earlier(tokens[a], j):
                continue
            weight, drafted = (
                _weight(p[a], distribution, column, token, alpha, beta),
                _distribution(distribution, column, token),
            )
            point = weight / mass if mass > 0.0 else 0.0
            if not soft[a, j]:
                ratio[a, j] = point
            elif total > 0.0:
                ratio[a, j] = point * total / drafted if drafted > 0.0 else 0.0
                if mass > 0.0:
                    alpha, beta = alpha / mass, beta / mass + 1.0 / total
            if (tokens[a, j + 1 :] >= 0).any():
                # Summed over what remains: a difference would be rounding where the children have nearly all of it.
                mass = _excess_row(p[a], distribution, column, alpha, beta, tokens[a, : j + 1])
                total = _rest_of_distribution(distribution, column, tokens[a, : j + 1]) if q_row[a] >= 0 else 1.0
        alphas[a], betas[a] = alpha, beta


def _distributions(distributions: Distributions) -> tuple[Any, Any]:
    """Return q [at least 1, V_d] and the column of each id, empty if columns are ids."""
    q = distributions.q if len(distributions.q) else torch.zeros(1, 1)
    column = np.empty(0, np.int64) if distributions.column is None else distributions.column.numpy()
    return q.contiguous().numpy(), column


def _left(left: Remainder) -> tuple[Any, ...]:
    columns = (left.rows, left.alpha, left.beta, left.q_row, left.removed)
    return tuple(column.contiguous().numpy() for column in columns)


def _noise(noise: Noise) -> tuple[Any, ...]:
    places = (np.ascontiguousarray(values, np.int64) for values in (noise.positions, noise.seq_index))
    return np.ascontiguousarray(noise.keys, np.uint64), *places


def _fits(p: Tensor) -> bool:
    return p.device.type == "cpu" and p.dtype is torch.float32


def uniform(noise: Noise, purpose: int, words: Tensor) -> Tensor:
    """Return u [R, c] float64; see torch_ref."""
    out = np.empty(words.shape, np.float64)
    _uniform(*_noise(noise), int(purpose), words.contiguous().numpy(), out)
    return torch.from_numpy(out)


def excess(p: Tensor, left: Remainder, distributions: Distributions) -> Tensor:
    """Return what the weights of each remainder add up to, [n] float64; see torch_ref."""
    if not _fits(p):
        return torch_ref.excess(p, left, distributions)
    out = np.empty(len(left.rows), np.float64)
    _excess(p.contiguous().numpy(), *_distributions(distributions), *_left(left), out)
    return torch.from_numpy(out)


def residual(p: Tensor, left: Remainder, distributions: Distributions, noise: Noise, purpose: int) -> Tensor:
    """Return one id a remainder, [n] int64; see torch_ref."""
    if not _fits(p):
        return torch_ref.residual(p, left, distributions, noise, purpose)
    winners = np.empty(len(left.rows), np.int64)
    _residual(
        p.contiguous().numpy(), *_distributions(distributions), *_left(left), *_noise(noise), int(purpose), winners
    )
    return torch.from_numpy(winners)


def accept(
    p: Tensor, tokens: Tensor, soft: Tensor, q_row: Tensor, distributions: Distributions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ratios [A, C], alpha [A] and beta [A]; see torch_ref."""
    if not _fits(p):
        return torch_ref.accept(p, tokens, soft, q_row, distributions)
    q, column = _distributions(distributions)
    ratio = np.empty(tokens.shape, np.float64)
    alpha, beta = (np.empty(len(tokens), np.float64) for _ in range(2))
    given = (part.contiguous().numpy() for part in (tokens, soft, q_row))
    _accept(p.contiguous().numpy(), q, distributions.total.numpy(), column, *given, ratio, alpha, beta)
    return torch.from_numpy(ratio), torch.from_numpy(alpha), torch.from_numpy(beta)
