"""Are two outputs the same, and if not, is it rounding? Margin at the first difference against noise of widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from specdec_core.draft import IntArray
from specdec_core.noise import Noise, Purpose
from specdec_engine.decoding.target import Target
from specdec_engine.requests.request import Request
from specdec_engine.requests.scheduled_rows import ScheduledRows
from specdec_engine.sampling.draw_rows import DrawRows
from specdec_engine.sampling.sampler import Sampler
from specdec_engine.sampling_params import SamplingParams
from specdec_nn.ops.race.reference import exponential_reference

WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Divergence:
    """The first place where two outputs of one request differ.

    index    index in the output
    plain, other  the two ids there, None where an output has ended
    margin   how far the plain target's row there is from giving another id: the difference of the two best processed
             logits (greedy) or log race scores (sampled); or, if that is less, the distance to an edge of top_k, min_p
             or top_p beyond which the winner would be truncated or an id that would win would not
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
    target: Target, sampler: Sampler, request: Request, plain: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Return the first divergence of two outputs of a request, or None if they are the same.

    `request` is as it was when it was submitted, with its prompt only; it is used up. `target` must be idle; its KV
    arena needs room for the prompt and the output.
    """
    index = first_difference(plain, other)
    if index is None:
        return None
    said = list(plain[:index])
    request.prompt_logprobs = None
    request.append(np.array(said, np.int32))
    sampler.commit(request, request.tokens[request.prompt_len :])
    rows = [row_after(target, request, width) for width in (0, *WIDTHS)]
    untruncated = replace(request.sampling_params, min_p=0.0, top_k=0, top_p=1.0)
    every = [_processed(sampler, request, row, untruncated) for row in rows]
    margin, noise = math.inf, 0.0
    if every[1] is not None:
        scores = torch.stack([row for row in every if row is not None])
        finite = torch.isfinite(scores).all(dim=0)
        noise = 2 * float((scores - every[1])[:, finite].abs().max()) if finite.any() else 0.0
        margin = _margin(sampler, request, rows[1], every[1])
    return Divergence(
        index,
        plain[index] if index < len(plain) else None,
        other[index] if index < len(other) else None,
        margin,
        noise,
        "rounding" if margin <= noise else "fault",
    )


def _processed(sampler: Sampler, request: Request, row: Tensor, params: SamplingParams) -> Tensor | None:
    """Return the row [V] after the newest id as `params` process it; None where they leave no distribution."""
    own, request.sampling_params = request.sampling_params, params
    try:
        draw = DrawRows.of([ScheduledRows(request, len(request) - 1, request.tokens[-1:], False, 0, 1)])
        processed = sampler.process(row[None], draw)[0]
    finally:
        request.sampling_params = own
    draw.read_finite()
    return None if draw.dead else processed


def _margin(sampler: Sampler, request: Request, row: Tensor, scores: Tensor) -> float:
    """Return the margin of `Divergence`; `scores` [V] are the row's logits after temperature."""
    params = request.sampling_params
    ranks = scores.clone()
    alive = torch.isfinite(scores)
    edges = []
    if not params.greedy:
        keys, places = np.array([request.key], np.uint64), np.array([len(request)], np.int32)
        noise = Noise(keys, places, np.array([request.seq_index], np.int32))
        ranks -= (
            exponential_reference(noise, Purpose.TARGET, torch.arange(len(row), device=row.device))[0].log().float()
        )
        kept, alive = (
            torch.isfinite(processed)
            for chosen in (replace(params, top_p=1.0), params)
            if (processed := _processed(sampler, request, row, chosen)) is not None
        )
        winner = torch.where(alive, ranks, -torch.inf).argmax()
        edges = _edges(scores, kept, int(winner), ~alive & (ranks > ranks[winner]), params)
    best = torch.where(alive, ranks, -torch.inf).topk(min(2, len(ranks))).values
    return min([float(best[0] - best[-1]) if len(best) > 1 else math.inf, *edges])


def _edges(scores: Tensor, kept: Tensor, winner: int, rivals: Tensor, params: SamplingParams) -> list[float]:
    """Return the distances to edges of truncation that decide who wins.

    kept    [V] ids that min_p and top_k leave
    rivals  [V] ids that would win if they were not truncated
    """
    distances = []
    lowest = scores[kept].min()
    floor = scores.max() + (math.log(params.min_p) if params.min_p > 0 else -math.inf)
    cut = ~kept & torch.isfinite(scores)
    if cut.any():
        distances += [scores[winner] - scores[cut].max(), scores[winner] - floor]
        if (rivals & cut).any():
            nearest = scores[rivals & cut].max()
            distances += [distance for distance in (lowest - nearest, floor - nearest) if distance >= 0]
    if params.top_p < 1:
        distribution = torch.softmax(torch.where(kept, scores, -torch.inf).double(), dim=-1)
        order = torch.sort(distribution, descending=True, stable=True).indices
        before = torch.empty_like(distribution)
        before[order] = distribution[order].cumsum(-1) - distribution[order]
        distances.append(params.top_p - before[winner])
        if (rivals & kept).any():
            distances.append(before[rivals & kept].min() - params.top_p)
    return [float(distance) for distance in distances]


def row_after(target: Target, request: Request, width: int) -> Tensor:
    """Return logits [V] after the request's ids: from one prompt pass (width 0), or a decode forward of some width."""
    ids: IntArray = request.tokens
    decode_width, target.decode_width = target.decode_width, None
    try:
        last = len(ids) - 1
        filler = np.resize(ids, max(width - 1, 0)).astype(np.int32)
        if not target.arena.reserve(request.segment, len(ids) + len(filler)):
            message = "the KV arena has no room to diagnose a divergence; raise kv_cache_tokens"
            raise RuntimeError(message)
        if width == 0:
            out = target.forward([ScheduledRows(request, 0, ids, True, wants=1)])
        else:
            if last:
                target.forward([ScheduledRows(request, 0, ids[:last], True)])
            rows = np.concatenate((ids[last:], filler))
            out = target.forward([ScheduledRows(request, last, rows, False, len(filler), len(rows))])
        assert out.logits is not None
        return out.logits[0].float()
    finally:
        target.decode_width = decode_width
        target.arena.release(request.segment)
