"""The learning rate in the course of a run: it rises in a line, then falls along a cosine; by ids, never by time."""

from __future__ import annotations

import math


def rate(done: float, warmup: float, floor: float) -> float:
    """Return the factor of the learning rate when a part `done` (0 .. 1) of the ids is behind.

    It rises over the first `warmup` of the run to 1 and ends at `floor`.
    """
    if done < warmup:
        return max(done / warmup, 0.02)
    fallen = (done - warmup) / max(1.0 - warmup, 1e-9)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(fallen, 1.0)))
