"""The draw op on a GPU: one read of the logits; under TRITON_INTERPRET=1 the same source runs on a CPU.

A program finds the largest logit and the winner of one stretch of one row, and a second kernel joins the stretches of
a row. A stretch is a fixed part of the vocabulary, so a draw is a function of its own row. Softmax is not needed: the
race does not change by a factor, so a stretch races with exp(x - its largest), and the factor that is missing between
stretches is put on their winners' scores.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201
from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_core.noise import Noise, Purpose
from specdec_nn.ops.draw.reference import Rows
from specdec_nn.ops.noise.triton import OPTIONS, columns_on, exponential, word
from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache

check_cache()

STRETCH: Final = 4096  # ids a program
WARPS: Final = 8
JOINED: Final = 4  # rows a program of the second kernel

_NEVER = tl.constexpr(float("-inf"))
_BEYOND = tl.constexpr(float("inf"))
_UNIT = tl.constexpr(2.0**-32)
_NEAR = tl.constexpr(2.0**-6)  # below this, -log(1 - t) is its series
_THIRD = tl.constexpr(1.0 / 3.0)
_CLOSE = tl.constexpr(0.999)  # a share of the best rough score; rough noise is within 1e-4 of the exact one


@triton.jit
def stretch_of(logits, ids, vocabulary):
    """Return logits of a block of ids in float32, -inf beyond the vocabulary, +inf in place of NaN."""
    x = tl.load(logits + ids, mask=ids < vocabulary, other=_NEVER).to(tl.float32)
    return tl.where(x != x, _BEYOND, x)


@triton.jit
def rough_noise(bits):
    """Return e in float32, within 1e-4 of the definition, of a block of words of Philox, uint32."""
    t = ((~bits).to(tl.float32) + 0.5) * _UNIT  # 1 - u, which is exact near 0, where winners are
    near = t * (1.0 + t * (0.5 + t * (_THIRD + t * 0.25)))
    return tl.where(t < _NEAR, near, -tl.log((bits.to(tl.float32) + 0.5) * _UNIT))


@triton.jit
def race_of(weight, ids, vocabulary, key, position, seq, purpose):
    """Return the best score weight(v) / e(v), float64, of a block of weights, and the lowest id that has it.

    weight is float32 or float64, and all 0 gives (-1, vocabulary). Rough noise in float32 leaves a few candidates, as
    a rule one; their scores alone are made in float64, as the definition has them.
    """
    most = tl.max(weight, 0)
    best = most.to(tl.float64) * 0.0 - 1.0
    winner = tl.min(ids, 0) * 0 + vocabulary
    if most > 0:
        e = rough_noise(word(key, ids, position, seq, purpose))
        rough = (weight / most).to(tl.float32) / e
        left = (rough >= tl.max(rough, 0) * _CLOSE) & (weight > 0)
        count = tl.sum(left.to(tl.int32), 0)
        for _ in range(0, count):
            candidate = tl.min(tl.where(left, ids, vocabulary), 0)
            own = tl.sum(tl.where(ids == candidate, weight, 0.0), 0).to(tl.float64)
            score = own / exponential(key, candidate, position, seq, purpose)
            # Later ids win only by a higher score, so the lowest id keeps a tie.
            winner = tl.where(score > best, candidate, winner)
            best = tl.maximum(score, best)
            left = left & (ids != candidate)
    return best, winner


@triton.jit
def join(tops, scores, winners, rows, alive, parts, plain, vocabulary, PARTS: tl.constexpr):
    """Return the largest logit and the id of each of a block of rows, from what their stretches gave.

    rows, alive and plain (greedy) are blocks. A row without a distribution gives -1.
    """
    at = tl.arange(0, PARTS)
    place = rows.to(tl.int64)[:, None] * parts + at[None, :]
    inside = alive[:, None] & (at < parts)[None, :]
    top = tl.load(tops + place, mask=inside, other=_NEVER)
    score = tl.load(scores + place, mask=inside, other=-1.0)
    winner = tl.load(winners + place, mask=inside, other=vocabulary)
    largest = tl.max(top, 1)
    sound = (largest > _NEVER) & (largest < _BEYOND)
    gap = top - tl.where(sound, largest, 0.0)[:, None]
    scale = tl.exp(tl.where(sound[:, None], gap, 0.0)).to(tl.float64)
    scaled = tl.where(score >= 0, score * scale, -1.0)
    raced = (scaled == tl.max(scaled, 1)[:, None]) & (scaled >= 0)
    chosen = (plain[:, None] & (top == largest[:, None])) | ((plain == 0)[:, None] & raced)
    drawn = tl.min(tl.where(chosen & inside, winner, vocabulary), 1)
    return largest, tl.where(sound, drawn, -1)


@triton.jit(do_not_specialize=["purpose"])
def draw_part(
    logits, stride, vocabulary, keys, positions, seq_index, greedy, purpose, tops, scores, winners,
    RACES: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Fill in the largest logit of one stretch of one row, and the winner with its score.

    Without RACES all rows are greedy, which takes a quarter of the registers.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * SIZE + tl.arange(0, SIZE)
    x = stretch_of(logits + row * stride, ids, vocabulary)
    top = tl.max(x, 0)
    place = row * tl.num_programs(1) + part
    tl.store(tops + place, top)
    plain = True
    if RACES:
        plain = tl.load(greedy + row) != 0
    if plain:
        tl.store(winners + place, tl.min(tl.where((x == top) & (ids < vocabulary), ids, vocabulary), 0))
        tl.store(scores + place, tl.full((), 0.0, tl.float64))
    else:
        sound = (top > _NEVER) & (top < _BEYOND)
        weight = tl.where(sound, tl.exp(x - tl.where(sound, top, 0.0)), 0.0)
        key, position, seq = tl.load(keys + row), tl.load(positions + row), tl.load(seq_index + row)
        best, winner = race_of(weight, ids, vocabulary, key, position, seq, purpose)
        tl.store(scores + place, best)
        tl.store(winners + place, winner)


@triton.jit
def draw_join(
    tops, scores, winners, rows, parts, vocabulary, greedy, draws, ROWS: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Fill in the ids of ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    alive = row < rows
    plain = tl.load(greedy + row, mask=alive, other=1) != 0
    _, drawn = join(tops, scores, winners, row, alive, parts, plain, vocabulary, PARTS)
    tl.store(draws + row, drawn.to(tl.int64), mask=alive)


def stretches(logits: Tensor, columns: Tensor, *, races: bool) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], int]:
    """Run `draw_part` over logits [R, V]; return them, (tops, scores, winners) [R, P] and P.

    columns [4, R] int64: keys, positions, sequence indices, greedy; `races`: not all rows are greedy.
    """
    logits = logits.detach()
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, STRETCH)
    kinds = (torch.float32, torch.float64, torch.int32)
    found: Any = tuple(torch.empty(rows, parts, dtype=kind, device=logits.device) for kind in kinds)
    given = logits, logits.stride(0), vocabulary, *columns.unbind(), int(Purpose.TARGET)
    draw_part[(rows, parts)](*given, *found, RACES=races, SIZE=STRETCH, num_warps=WARPS, **OPTIONS)
    return logits, found, parts


def joined(logits: Tensor, columns: Tensor, *, races: bool) -> Tensor:
    """Return one id a row, [R] int64; arguments as for `stretches`, at least one row."""
    (rows, vocabulary), draws = logits.shape, torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    _, found, parts = stretches(logits, columns, races=races)
    grid, size = (triton.cdiv(rows, JOINED),), triton.next_power_of_2(parts)
    draw_join[grid](*found, rows, parts, vocabulary, columns[3], draws, ROWS=JOINED, PARTS=size, **OPTIONS)
    return draws


def draw(logits: Tensor, noise: Noise, greedy: Rows) -> Tensor:
    """Return one id a row, [R] int64; see `draw_reference` for arguments, shapes and meaning."""
    if not len(logits):
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    columns = columns_on(logits.device, noise.keys, noise.positions, noise.seq_index, greedy)
    return joined(logits, columns, races=not greedy.all())


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    found = {"*fp32": "tops", "*fp64": "scores", "*i32": "winners"}
    places = "keys positions seq_index greedy"
    coarse, single = {**found, "*bf16": "logits", "*i64": places}, {**found, "*fp32": "logits tops", "*i64": places}
    options = {**OPTIONS, "num_warps": WARPS}
    return [
        PtxCase(draw_part, coarse, {"RACES": True, "SIZE": STRETCH}, options, label="bf16"),
        PtxCase(draw_part, single, {"RACES": True, "SIZE": STRETCH}, options, label="fp32"),
        PtxCase(draw_part, coarse, {"RACES": False, "SIZE": STRETCH}, options, label="greedy"),
        PtxCase(draw_join, {**found, "*i64": "greedy draws"}, {"ROWS": JOINED, "PARTS": 32}, OPTIONS),
    ]
