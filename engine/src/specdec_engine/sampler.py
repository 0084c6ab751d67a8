"""How a token is drawn at a row: every row is drawn by this rule, speculation or not; verifiers only compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.draft import IntArray
from specdec.noise import Noise, Purpose
from specdec_engine.request import Request

Race = Callable[[Tensor, Noise, int], Tensor]


class Sampler:
    """Processes logits and draws: argmax for greedy rows, else argmax of p(v) / e(v) with the row's own noise."""

    def __init__(self, race: Race) -> None:
        """Take the `race` kernel."""
        self._race = race

    def noise(self, requests: Sequence[Request], counts: Sequence[int], positions: IntArray) -> Noise:
        """Return the noise of rows: counts[i] rows of requests[i], row r drawing the token at positions[r] + 1."""
        repeat = np.asarray(counts)
        keys = np.array([r.key for r in requests], np.uint64)
        seq = np.array([r.seq_index for r in requests], np.int32)
        return Noise(np.repeat(keys, repeat), positions + np.int32(1), np.repeat(seq, repeat))

    def process(self, logits: Tensor, requests: Sequence[Request], counts: Sequence[int]) -> Tensor:
        """Return processed logits [R, V] float32; the given ones stay as they are. Greedy rows are not scaled."""
        logits = logits.float()
        if all(request.sampling_params.greedy for request in requests):
            return logits
        temperatures = [1.0 if r.sampling_params.greedy else r.sampling_params.temperature for r in requests]
        if any(t != 1.0 for t in temperatures):
            per_row = torch.tensor(temperatures, dtype=torch.float32).repeat_interleave(torch.tensor(list(counts)))
            logits = logits / per_row.to(logits.device).unsqueeze(1)
        return logits

    def draw(self, processed: Tensor, noise: Noise, requests: Sequence[Request], counts: Sequence[int]) -> Tensor:
        """Return the drawn ids [R] int64."""
        if all(request.sampling_params.greedy for request in requests):
            return argmax(processed)
        greedy = np.repeat(np.array([r.sampling_params.greedy for r in requests], np.bool_), np.asarray(counts))
        if not greedy.any():
            return self._race(torch.softmax(processed, dim=-1), noise, Purpose.TARGET)
        draws = argmax(processed)
        rows = np.flatnonzero(~greedy)
        index = torch.from_numpy(rows).to(processed.device)
        part = Noise(noise.keys[rows], noise.positions[rows], noise.seq_index[rows])
        draws[index] = self._race(torch.softmax(processed[index], dim=-1), part, Purpose.TARGET)
        return draws


def argmax(logits: Tensor) -> Tensor:
    """Return the id of the largest of each row [R, V] float32, the lowest one on ties, [R] int64."""
    if logits.device.type == "cpu":
        # numpy's is vectorised, torch's is not; both return the first of equal values.
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)
