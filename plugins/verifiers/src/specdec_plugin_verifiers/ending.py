"""How each batch row ends: greedily, with a bonus where no draft was left, or with a draw from what rejections left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import Verdict
from specdec_core.errors import SpecdecError
from specdec_core.noise import Purpose
from specdec_plugin_verifiers.distributions import Remainder
from specdec_plugin_verifiers.tree import Places, verdict
from specdec_plugin_verifiers.trial import Floats, Trial


@dataclass(slots=True)
class Rejections:
    """What is left to draw from at n rows where the children were rejected; fields as in `Remainder`."""

    alpha: Floats
    beta: Floats
    q_row: Places
    removed: Places

    @classmethod
    def none(cls, n: int, width: int) -> Rejections:
        """Return n rows at which p itself is left."""
        return cls(np.ones(n), np.zeros(n), np.full(n, -1, np.int64), np.full((n, width), -1, np.int64))

    def set(self, at: Places, alpha: Any, beta: Any, q_row: Places, removed: Places) -> None:
        """Note what is left at the rows `at`."""
        self.alpha[at], self.beta[at], self.q_row[at] = alpha, beta, q_row
        self.removed[at] = -1
        self.removed[at, : removed.shape[1]] = removed


def last_ids(trial: Trial, stops: Places, left: Rejections | None) -> Places:
    """Return the id that ends each batch row, [n], for the logits rows [n] where the accepted paths stop.

    After a rejection it is drawn from what is left; without `left`, it is the most likely id.
    """
    ids = np.empty(len(stops), np.int64)
    leaf = trial.forest.first_child[stops] < 0
    at = np.flatnonzero(trial.greedy)
    if len(at):
        ids[at] = trial.greedy_draws(stops[at])
    at = np.flatnonzero(leaf & ~trial.greedy)
    if len(at):
        ids[at] = _bonus(trial, stops[at])
    at = np.flatnonzero(~leaf & ~trial.greedy)
    if len(at):
        ids[at] = trial.best(stops[at]) if left is None else _residual(trial, stops[at], at, left)
    return ids


def _bonus(trial: Trial, rows: Places) -> Places:
    return race(trial, rows, Purpose.TARGET) if trial.host_draws is None else trial.host_draws[rows]


def _residual(trial: Trial, rows: Places, at: Places, left: Rejections) -> Places:
    parts = (trial.tensor(values[at]) for values in (left.alpha, left.beta, left.q_row, left.removed))
    remainder = Remainder(torch.arange(len(at), device=trial.logits.device), *parts)
    residual = trial.op("residual")
    drawn = residual(trial.distribution(rows), remainder, trial.distributions, trial.noise_at(rows), Purpose.RESIDUAL)
    return filled(trial, rows, drawn.cpu().numpy())


def filled(trial: Trial, rows: Places, ids: Places) -> Places:
    """Return the ids with a draw from p itself where nothing was left, and the id is -1.

    Nothing is left where p = q, or where the draft had all of p; a rejection there is rounding.
    """
    empty = np.flatnonzero(ids < 0)
    if len(empty):
        ids = ids.copy()
        ids[empty] = race(trial, rows[empty], Purpose.RESIDUAL)
    return ids


def race(trial: Trial, rows: Places, purpose: Purpose) -> Places:
    """Return an id drawn from the target's distribution at each of some logits rows."""
    ids: Places = trial.op("race")(trial.distribution(rows), trial.noise_at(rows), purpose).cpu().numpy()
    if (ids < 0).any():
        message = f"row {int(rows[ids < 0][0])} of the logits leaves no id that could be drawn"
        raise SpecdecError(message)
    return ids


def conclude(trial: Trial, p: Tensor, path: Tensor, left: Remainder) -> Verdict:
    """Return the verdict for paths [n, depth] that stop at logits rows `left.rows` of p [R, V].

    Nothing waits for a device before all is known; on the host, only what is needed is drawn.
    """
    if not trial.on_host:
        return read(trial, ended(trial, p, path, left))
    stops = left.rows.numpy()
    parts = (values.numpy() for values in (left.alpha, left.beta, left.q_row, left.removed))
    return verdict(trial.forest, path.numpy(), stops, last_ids(trial, stops, Rejections(*parts)))


def ended(trial: Trial, p: Tensor, path: Tensor, left: Remainder) -> Tensor:
    """Return stops, last ids and paths, [n, 2 + depth] int64, where the logits are; arguments as for `conclude`."""
    stops, residual = left.rows, trial.op("residual")
    none = torch.full_like(stops, -1)
    whole = Remainder(stops, torch.ones_like(left.alpha), torch.zeros_like(left.beta), none, none[:, None])
    last = residual(p, left, trial.distributions, trial.noise, Purpose.RESIDUAL)
    # Nothing is left where p = q, or where the draft had all of p; a rejection there is rounding.
    last = torch.where(last < 0, residual(p, whole, trial.distributions, trial.noise, Purpose.RESIDUAL), last)
    if trial.draws is None:
        bonus = residual(p, whole, trial.distributions, trial.noise, Purpose.TARGET)
    else:
        bonus = trial.answers[stops]
    leaf = trial.tensor(trial.forest.first_child)[stops] < 0
    last = torch.where(leaf, bonus, last)
    if trial.greedy.any():
        last = torch.where(trial.tensor(trial.greedy), trial.answers[stops], last)
    return torch.cat([stops[:, None], last[:, None], path], 1)


def read(trial: Trial, result: Tensor) -> Verdict:
    """Return the verdict for stops, last ids and paths, which it reads, and ids of the draft that are on the device."""
    values: Places = result.cpu().numpy()
    forest = trial.forest
    if trial.tokens is not None:
        forest = replace(forest, tokens=trial.tokens.cpu().numpy().astype(np.int64))
    return verdict(forest, values[:, 2:], values[:, 0], values[:, 1])
