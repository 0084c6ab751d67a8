"""The draw op, one id a row of logits, greedy or by the race, and its definition in torch; it knows no requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_core.noise import Noise, Purpose
from specdec_nn.device_copies import to_device
from specdec_nn.ops.race.reference import race_reference

Race = Callable[[Tensor, Noise, int], Tensor]
Rows = npt.NDArray[np.bool_]


def draw_reference(logits: Tensor, noise: Noise, greedy: Rows) -> Tensor:
    """Return one id a row, [R] int64; the definition of the op.

    logits  [R, V] of any float dtype, -inf where an id is excluded; read in float32
    noise   of R rows
    greedy  [R] bool: the row gives the id of its largest logit, the lowest of equal ones; any other row an id drawn
            by the race over its softmax, with Purpose.TARGET

    A row whose largest logit is not finite (a NaN, +inf, or nothing above -inf) has no distribution and gives -1.
    """
    return draw_by(race_reference, logits.float(), noise, greedy)


def draw_by(race: Race, logits: Tensor, noise: Noise, greedy: Rows) -> Tensor:
    """Return what `draw_reference` does for logits in float32, by a kernel of the op `race`."""
    if not greedy.any():
        return race(torch.softmax(logits, dim=-1), noise, Purpose.TARGET)
    draws = argmax(logits)
    draws = torch.where(torch.isfinite(logits.gather(1, draws[:, None])[:, 0]), draws, -1)
    sampled = np.flatnonzero(~greedy)
    if len(sampled):
        index = to_device(sampled, logits.device)
        part = Noise(noise.keys[sampled], noise.positions[sampled], noise.seq_index[sampled])
        draws[index] = race(torch.softmax(logits[index], dim=-1), part, Purpose.TARGET)
    return draws


def argmax(logits: Tensor) -> Tensor:
    """Return the id of the largest of each row [R, V] float32, the lowest one on ties, [R] int64; a NaN is largest."""
    if logits.device.type == "cpu":
        # numpy's is vectorised, torch's is not; both return the first of equal values.
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    largest = logits.amax(dim=-1, keepdim=True)
    ids = torch.arange(logits.shape[1], device=logits.device)
    same = (logits == largest) | (logits != logits)
    return torch.where(same, ids, logits.shape[1] - 1).amin(dim=-1)
