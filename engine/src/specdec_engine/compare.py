"""Are two outputs the same, and if not, is it rounding? Margin at the first difference against noise of widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from specdec.draft import IntArray
from specdec.nn.race import exponential_reference
from specdec.noise import Noise, Purpose
from specdec_engine.request import Request, Work
from specdec_engine.sampling_params import SamplingParams
from specdec_engine.target import Target

WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Divergence:
    """The first place where two outputs of one request differ.

    index    index in the output
    plain, other  the two ids there, None where an output has ended
    margin   difference of the two best logits (greedy) or log race scores (sampled) of the plain target there
    noise    how far a difference of two such scores can move between forwards of different width: twice the largest
             change of a single one
    verdict  "rounding" if the margin is within the noise, else "fault"
    """

    index: int
    plain: int | None
    other: int | None
    margin: float
    noise: float
    verdict: Literal["rounding", "fault"]

    def __str__(self) -> str:
        """Return one line for people."""
        return (
            f"first difference at output index {self.index} ({self.plain} against {self.other}): "
            f"margin {self.margin:.3g}, noise between widths {self.noise:.3g}: {self.verdict}"
        )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first index where two sequences differ, None if they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def diagnose(
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    params: SamplingParams,
    key: int,
    seq_index: int = 0,
) -> Divergence | None:
    """Return the first divergence of two outputs, or None if they are the same.

    `target` must be idle; its KV arena needs room for the prompt and the output. `key` is the request's noise key.
    """
    index = first_difference(plain, other)
    if index is None:
        return None
    ids = np.array([*prompt, *plain[:index]], np.int32)
    scores = torch.stack([_row(target, ids, params, key, width) for width in (0, *WIDTHS)])
    temperature = 1.0 if params.greedy else params.temperature
    scores = scores / temperature
    noise = 2 * float((scores - scores[1]).abs().max())
    row = scores[1]
    if not params.greedy:
        place = Noise(np.array([key], np.uint64), np.array([len(ids)], np.int32), np.array([seq_index], np.int32))
        row = row - exponential_reference(place, Purpose.TARGET, torch.arange(len(row)))[0].log().float()
    best = row.topk(2).values
    margin = float(best[0] - best[1])
    return Divergence(
        index,
        plain[index] if index < len(plain) else None,
        other[index] if index < len(other) else None,
        margin,
        noise,
        "rounding" if margin <= noise else "fault",
    )


def _row(target: Target, ids: IntArray, params: SamplingParams, key: int, width: int) -> Tensor:
    """Return float32 logits [V] after `ids`: from one prompt pass (width 0), or from a decode forward of some width."""
    request = Request("diagnose", 0, ids, params, key, 0)
    decode_width, target.decode_width = target.decode_width, None
    try:
        last = len(ids) - 1
        filler = np.resize(ids, max(width - 1, 0)).astype(np.int32)
        if not target.arena.reserve(request.segment, len(ids) + len(filler)):
            message = "the KV arena has no room to diagnose a divergence; raise kv_cache_tokens"
            raise RuntimeError(message)
        if width == 0:
            out = target.forward([Work(request, 0, ids, True, wants=1)])
        else:
            if last:
                target.forward([Work(request, 0, ids[:last], True)])
            rows = np.concatenate((ids[last:], filler))
            out = target.forward([Work(request, last, rows, False, len(filler), len(rows))])
        assert out.logits is not None
        return out.logits[0].float().cpu()
    finally:
        target.decode_width = decode_width
        target.arena.release(request.segment)
