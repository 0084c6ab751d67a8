"""From speed-ups to one configuration: method, k, schedule by batch size, or plain decoding; knows no engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec_engine.bench.intervals import Ratio
from specdec_engine.tune.candidates import SCHEDULE, Candidate, K

GAIN: Final = 1.02  # a smaller speed-up is taken for none: it would not be noticed, and may be chance
VERIFIER: Final = "rejection_sample_method"


@dataclass(frozen=True)
class Option:
    """A method with k drafts, at a number of prompts that run together, with its speed-up over plain decoding."""

    label: str
    limit: int
    concurrency: int
    predicted: Ratio
    measured: Ratio | None = None

    @property
    def speed_up(self) -> float:
        """What was measured, else what is predicted."""
        return self.predicted.value if self.measured is None else self.measured.value


@dataclass(frozen=True)
class Choice:
    """One method, and its k for each number of prompts that was looked at; 0: plain decoding. All 0 has no label."""

    label: str | None
    limits: Mapping[int, int]

    @property
    def speculates(self) -> bool:
        """Whether there is a gain anywhere."""
        return self.label is not None


def best(options: Sequence[Option], concurrency: int, label: str | None = None) -> Option | None:
    """Return the fastest option of a concurrency (and method): of those measured if there are any."""
    found = [o for o in options if o.concurrency == concurrency and label in (None, o.label)]
    known = [option for option in found if option.measured is not None] or found
    return max(known, key=lambda option: option.speed_up, default=None)


def choose(options: Sequence[Option]) -> Choice:
    """Return the method whose speed-ups have the largest product over all sizes, with k = 0 where it gains nothing."""
    sizes = sorted({option.concurrency for option in options})
    ranked: list[tuple[float, str, dict[int, int]]] = []
    for label in dict.fromkeys(option.label for option in options):
        score, limits = 0.0, {}
        for size in sizes:
            found = best(options, size, label)
            gains = found is not None and found.speed_up >= GAIN
            limits[size] = found.limit if found is not None and gains else 0
            score += math.log(found.speed_up) if found is not None and gains else 0.0
        ranked.append((score, label, limits))
    score, label, limits = max(ranked, key=lambda each: each[0], default=(0.0, "", {}))
    return Choice(label, limits) if score > 0 else Choice(None, dict.fromkeys(sizes, 0))


def schedule(limits: Mapping[int, int]) -> list[list[int]]:
    """Return [start, end, k] by batch size: each size looked at holds up to the next one, the first from 1 on."""
    sizes = sorted(limits)
    ranges: list[list[int]] = []
    for place, size in enumerate(sizes):
        start = 1 if place == 0 else size
        end = sizes[place + 1] - 1 if place + 1 < len(sizes) else max(size, start)
        if ranges and ranges[-1][2] == limits[size]:
            ranges[-1][1] = end
        else:
            ranges.append([start, end, limits[size]])
    return ranges


def engine_config(candidate: Candidate, choice: Choice) -> dict[str, Any]:
    """Return the configuration for the engine; it has a schedule where k is not the same for all batch sizes."""
    most = max(choice.limits.values())
    config = {**candidate.config, K: most}
    if len(set(choice.limits.values())) > 1:
        config[SCHEDULE] = schedule(choice.limits)
    return config


def vllm_config(candidate: Candidate, choice: Choice) -> dict[str, Any] | None:
    """Return vLLM's `--speculative-config`, for specdec-vllm; None for trees, which vLLM does not verify."""
    if candidate.tree:
        return None
    config = {key: value for key, value in engine_config(candidate, choice).items() if key != VERIFIER}
    return {"method": "specdec", K: config.pop(K), "specdec": config}
