"""How a token is drawn at a row: every row is drawn by this rule, speculation or not; verifiers only compare."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec.noise import Noise, Purpose
from specdec_engine.rows import DrawRows

Race = Callable[[Tensor, Noise, int], Tensor]


class Sampler:
    """Processes logits and draws: argmax for greedy rows, else argmax of p(v) / e(v) with the row's own noise."""

    def __init__(self, race: Race) -> None:
        """Take the `race` kernel."""
        self._race = race

    def noise(self, rows: DrawRows) -> Noise:
        """Return the noise of the rows; what is drawn at a row stands at the row's position + 1."""
        keys = np.array([r.key for r in rows.requests], np.uint64)
        seq = np.array([r.seq_index for r in rows.requests], np.int32)
        return Noise(rows.spread(keys), rows.positions + np.int32(1), rows.spread(seq))

    def process(self, logits: Tensor, rows: DrawRows) -> Tensor:
        """Return processed logits [R, V] float32; the given ones stay as they are. Greedy rows are not scaled."""
        logits = logits.float()
        params = [request.sampling_params for request in rows.requests]
        temperatures = [1.0 if p.greedy else p.temperature for p in params]
        if any(t != 1.0 for t in temperatures):
            per_row = torch.from_numpy(rows.spread(np.array(temperatures, np.float32)))
            logits = logits / per_row.to(logits.device).unsqueeze(1)
        return logits

    def draw(self, processed: Tensor, noise: Noise, rows: DrawRows) -> Tensor:
        """Return the drawn ids [R] int64."""
        greedy_of = np.array([request.sampling_params.greedy for request in rows.requests], np.bool_)
        if greedy_of.all():
            return argmax(processed)
        greedy = rows.spread(greedy_of)
        if not greedy.any():
            return self._race(torch.softmax(processed, dim=-1), noise, Purpose.TARGET)
        draws = argmax(processed)
        sampled = np.flatnonzero(~greedy)
        index = torch.from_numpy(sampled).to(processed.device)
        part = Noise(noise.keys[sampled], noise.positions[sampled], noise.seq_index[sampled])
        draws[index] = self._race(torch.softmax(processed[index], dim=-1), part, Purpose.TARGET)
        return draws


def argmax(logits: Tensor) -> Tensor:
    """Return the id of the largest of each row [R, V] float32, the lowest one on ties, [R] int64."""
    if logits.device.type == "cpu":
        # numpy's is vectorised, torch's is not; both return the first of equal values.
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)
