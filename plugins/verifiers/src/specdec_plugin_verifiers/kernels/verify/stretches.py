"""Kernels over stretches of the vocabulary: what a row adds up to, what is left of it, the draw that ends a tree."""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201
from __future__ import annotations

import triton
import triton.language as tl

from specdec_nn.ops.draw.triton import race_of, stretch_of
from specdec_nn.ops.triton_cache import check_cache

check_cache()

# Columns of `Packed.rows`
KEY = tl.constexpr(0)
POSITION = tl.constexpr(1)
SEQ_INDEX = tl.constexpr(2)
GREEDY = tl.constexpr(3)
ABOVE = tl.constexpr(4)
FIRST = tl.constexpr(5)
COUNT = tl.constexpr(6)

_NEVER = tl.constexpr(float("-inf"))
_BEYOND = tl.constexpr(float("inf"))


@triton.jit
def is_sound(top):
    """Return whether the largest logit of a row, or of each of a block, leaves a distribution."""
    return (top > _NEVER) & (top < _BEYOND)


@triton.jit
def distribution_at(distribution, column, ids, mask, MAPPED: tl.constexpr):
    """Return q in float64 of a block of target ids, or of one; `distribution` points to the distribution's row."""
    if MAPPED:
        columns = tl.load(column + ids, mask=mask, other=-1)
        known = mask & (columns >= 0)
        return tl.load(distribution + tl.where(known, columns, 0), mask=known, other=0.0).to(tl.float64)
    return tl.load(distribution + ids, mask=mask, other=0.0).to(tl.float64)


@triton.jit
def left_of(
    logits, top, inverse, distribution, column, ids, vocabulary, alpha, beta, kids, tokens, removed,
    DISTRIBUTIONS: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """Return max(alpha p - beta q, 0) of a block of ids, 0 at the ids of the first `removed` nodes of `kids`."""
    whole = tl.exp(stretch_of(logits, ids, vocabulary) - top)
    weight = alpha * (whole.to(tl.float64) * inverse)
    if DISTRIBUTIONS:
        if beta > 0:
            weight = weight - beta * distribution_at(distribution, column, ids, ids < vocabulary, MAPPED)
    weight = tl.maximum(weight, 0.0)
    for j in range(0, removed):
        weight = tl.where(ids == tl.load(tokens + tl.load(kids + j)), 0.0, weight)
    return weight


@triton.jit
def measure_part(
    logits, stride, vocabulary, table, rows, kids, tokens, distributions, tops, sums, winners, SIZE: tl.constexpr
):  # fmt: skip
    """Fill in the largest logit of one stretch of one row, its id, and what exp(x - largest) adds up to.

    Children are left out of the sum where none of them was drawn, so that what is left without them is no difference.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = part * SIZE + tl.arange(0, SIZE)
    x = stretch_of(logits + row * stride, ids, vocabulary)
    top = tl.max(x, 0)
    weight = tl.where(is_sound(top), tl.exp(x - tl.where(is_sound(top), top, 0.0)), 0.0)
    first = tl.load(table + FIRST * rows + row)
    count = tl.load(table + COUNT * rows + row)
    distribution = first * 0 - 1
    for j in range(0, count):
        distribution = tl.maximum(distribution, tl.load(distributions + tl.load(kids + first + j)).to(tl.int64))
    for j in range(0, tl.where(distribution < 0, count, 0)):
        weight = tl.where(ids == tl.load(tokens + tl.load(kids + first + j)), 0.0, weight)
    place = row * tl.num_programs(1) + part
    tl.store(tops + place, top)
    tl.store(sums + place, tl.sum(weight, 0))
    tl.store(winners + place, tl.min(tl.where((x == top) & (ids < vocabulary), ids, vocabulary), 0))


@triton.jit
def measured(tops, sums, winners, rows, alive, parts, vocabulary, PARTS: tl.constexpr):
    """Return of a block of rows the largest logit, its lowest id (-1: no distribution) and the sum, float64."""
    at = tl.arange(0, PARTS)
    place = rows.to(tl.int64)[:, None] * parts + at[None, :]
    inside = alive[:, None] & (at < parts)[None, :]
    top = tl.load(tops + place, mask=inside, other=_NEVER)
    winner = tl.load(winners + place, mask=inside, other=vocabulary)
    largest = tl.max(top, 1)
    sound = is_sound(largest)
    gap = top - tl.where(sound, largest, 0.0)[:, None]
    scale = tl.exp(tl.where(sound[:, None], gap, 0.0)).to(tl.float64)
    share = tl.load(sums + place, mask=inside, other=0.0).to(tl.float64)
    best = tl.min(tl.where((top == largest[:, None]) & inside, winner, vocabulary), 1)
    return largest, tl.where(sound, best, -1), tl.sum(share * scale, 1)


@triton.jit
def excess_part(
    logits, stride, vocabulary, table, rows, kids, distributions, q, q_stride, totals, column, tops, inverses, kept,
    sums, MAPPED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Fill in what max(b p - q, 0) adds up to over one stretch of one row, where its draft was drawn from a q."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = row * tl.num_programs(1) + part
    below = (tl.load(table + COUNT * rows + row) > 0) & (tl.load(table + ABOVE * rows + row) >= 0)
    node = tl.load(kids + tl.load(table + FIRST * rows + row), mask=below, other=0)
    distribution = tl.load(distributions + node, mask=below, other=-1).to(tl.int64)
    if distribution >= 0:
        ids = part * SIZE + tl.arange(0, SIZE)
        top, inverse = tl.load(tops + row), tl.load(inverses + row)
        alpha, beta = tl.load(kept + row), 1.0 / tl.load(totals + distribution)
        weight = left_of(
            logits + row * stride, top, inverse, q + distribution * q_stride, column, ids, vocabulary,
            alpha, beta, kids, kids, 0, True, MAPPED,
        )  # fmt: skip
        tl.store(sums + place, tl.sum(weight, 0))


@triton.jit(do_not_specialize=["target", "residual"])
def last_part(
    logits, stride, vocabulary, table, rows, kids, tokens, q, q_stride, column, places, shares, target, residual,
    scores, winners, DISTRIBUTIONS: tl.constexpr, MAPPED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Fill in the winner of the race over one stretch of what is left at the row where one tree ends."""
    tree, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, distribution = tl.load(places + tree * 4), tl.load(places + tree * 4 + 1)
    removed, todo = tl.load(places + tree * 4 + 2), tl.load(places + tree * 4 + 3)
    if todo > 0:
        ids = part * SIZE + tl.arange(0, SIZE)
        alpha, beta = tl.load(shares + tree * 4), tl.load(shares + tree * 4 + 1)
        top, inverse = tl.load(shares + tree * 4 + 2).to(tl.float32), tl.load(shares + tree * 4 + 3)
        weight = left_of(
            logits + row * stride, top, inverse, q + tl.maximum(distribution, 0) * q_stride, column, ids, vocabulary,
            alpha, beta, kids + tl.load(table + FIRST * rows + row), tokens, removed, DISTRIBUTIONS, MAPPED,
        )  # fmt: skip
        place = table + row
        key, position, seq = tl.load(place), tl.load(place + POSITION * rows), tl.load(place + SEQ_INDEX * rows)
        purpose = tl.where(tl.load(table + COUNT * rows + row) > 0, residual, target)
        best, winner = race_of(weight, ids, vocabulary, key, position, seq, purpose)
        tl.store(scores + tree * tl.num_programs(1) + part, best)
        tl.store(winners + tree * tl.num_programs(1) + part, winner)


@triton.jit(do_not_specialize=["residual"])
def last_join(
    logits, stride, vocabulary, table, rows, places, shares, residual, scores, winners, parts, result, width,
    PARTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Fill in the id that ends one tree; where nothing is left, which is rounding, it is drawn from p itself."""
    tree = tl.program_id(0).to(tl.int64)
    row, todo = tl.load(places + tree * 4), tl.load(places + tree * 4 + 3)
    if todo > 0:
        at = tl.arange(0, PARTS)
        score = tl.load(scores + tree * parts + at, mask=at < parts, other=-1.0)
        winner = tl.load(winners + tree * parts + at, mask=at < parts, other=vocabulary)
        best = tl.max(score, 0)
        last = tl.min(tl.where(score == best, winner, vocabulary), 0)
        if best < 0:
            top = tl.load(shares + tree * 4 + 2).to(tl.float32)
            place = table + row
            key, position, seq = tl.load(place), tl.load(place + POSITION * rows), tl.load(place + SEQ_INDEX * rows)
            for start in range(0, vocabulary, SIZE):
                ids = start + tl.arange(0, SIZE)
                whole = tl.exp(stretch_of(logits + row * stride, ids, vocabulary) - top)
                other, candidate = race_of(whole, ids, vocabulary, key, position, seq, residual)
                last = tl.where(other > best, candidate, last)
                best = tl.maximum(other, best)
        tl.store(result + tree * width + 1, last.to(tl.int64))
