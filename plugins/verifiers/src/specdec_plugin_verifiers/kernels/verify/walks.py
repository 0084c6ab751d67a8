"""Kernels over trees, one program a tree: they join what stretches gave, and walk down to where no child is accepted.

A tree's nodes are lanes of one block. Its rows are joined first, some at a time, through memory that the program reads
again after a barrier.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201, ANN202
from __future__ import annotations

import triton
import triton.language as tl

from specdec_nn.ops.draw.triton import join, stretch_of
from specdec_nn.ops.noise.triton import uniform
from specdec_nn.ops.triton_cache import check_cache
from specdec_plugin_verifiers.kernels.verify.stretches import (
    ABOVE,
    COUNT,
    FIRST,
    GREEDY,
    POSITION,
    SEQ_INDEX,
    distribution_at,
    is_sound,
    measured,
)

check_cache()

_NEVER = tl.constexpr(float("-inf"))
_TWINS = tl.constexpr(16)  # nodes that are compared with all others together


@triton.jit
def _begin_path(result, tree, width):
    """Return where the path of a tree is to be written, after filling it with -1."""
    for level in range(2, width):
        tl.store(result + tree * width + level, tl.full((), -1, tl.int64))
    tl.debug_barrier()
    return result + tree * width + 2


@triton.jit
def coupled_walk(
    tops, scores, winners, parts, vocabulary, table, rows, starts, nodes, tokens, draws, result, width,
    GIVEN: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Walk one tree to the child that equals the draw at its parent, until there is none.

    Draws that are not GIVEN are those that the stretches of the op `draw` found.
    """
    tree = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + tree), tl.load(starts + tree + 1)
    plain = tl.load(table + GREEDY * rows + start) != 0
    if not GIVEN:
        for chunk in range(start, end, ROWS):
            row = chunk + tl.arange(0, ROWS)
            alive = row < end
            _, drawn = join(tops, scores, winners, row, alive, parts, alive & plain, vocabulary, PARTS)
            tl.store(draws + row, drawn.to(tl.int64), mask=alive)
    path = _begin_path(result, tree, width)
    lane = tl.arange(0, NODES)
    row, alive = start + lane, lane < end - start
    first = tl.load(nodes + tree)
    drawn = tl.load(draws + row, mask=alive, other=-1)
    token = tl.load(tokens + first + lane - 1, mask=alive & (lane > 0), other=-1).to(tl.int64)
    above = tl.load(table + ABOVE * rows + row, mask=alive, other=-2)
    here = tl.min(lane, 0)
    answer = tl.sum(tl.where(lane == here, drawn, 0), 0)
    child = tl.min(tl.where((above == here) & (token == answer), lane, NODES), 0)
    level = here
    while child < NODES:
        tl.store(path + level, first + child - 1)
        here, level = child, level + 1
        answer = tl.sum(tl.where(lane == here, drawn, 0), 0)
        child = tl.min(tl.where((above == here) & (token == answer), lane, NODES), 0)
    tl.store(result + tree * width, start + here)
    tl.store(result + tree * width + 1, answer)


@triton.jit
def _join_measures(
    tops, sums, winners, start, end, parts, vocabulary, largest, rest, answers,
    GIVEN: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Fill in the largest logit, the sum without hidden children and, if not GIVEN, the best id of a tree's rows."""
    for chunk in range(start, end, ROWS):
        row = chunk + tl.arange(0, ROWS)
        alive = row < end
        top, best, total = measured(tops, sums, winners, row, alive, parts, vocabulary, PARTS)
        tl.store(largest + row, top, mask=alive)
        tl.store(rest + row, total, mask=alive)
        if not GIVEN:
            tl.store(answers + row, best.to(tl.int64), mask=alive)


@triton.jit
def _weigh_nodes(logits, stride, vocabulary, table, rows, largest, start, row, node, token, above):
    """Return exp(x - largest) of each node's id at its parent's row, float64, and the parents' rows."""
    up = start + tl.maximum(above, 0)
    top = tl.load(largest + up, mask=node, other=_NEVER)
    sound = is_sound(top)
    known = node & (token >= 0) & (token < vocabulary)
    x = tl.load(logits + up * stride + token, mask=known, other=_NEVER).to(tl.float32)
    weight = tl.where(sound & known, tl.exp(tl.where(sound, x - tl.where(sound, top, 0.0), 0.0)), 0.0)
    return weight.to(tl.float64), up


@triton.jit
def _first_of_twins(table, rows, tokens, first, start, count, lane, node, token, above, NODES: tl.constexpr):
    """Return which nodes have no earlier sibling of the same id."""
    fresh = node
    for chunk in range(0, NODES, _TWINS):
        other = chunk + tl.arange(0, _TWINS)
        there = (other > 0) & (other < count)
        parent = tl.load(table + ABOVE * rows + start + other, mask=there, other=-3)
        id_ = tl.load(tokens + first + other - 1, mask=there, other=-3).to(tl.int64)
        twin = (above[:, None] == parent[None, :]) & (token[:, None] == id_[None, :])
        earlier = twin & (other[None, :] < lane[:, None])
        fresh = fresh & (tl.max(earlier.to(tl.int32), 1) == 0)
    return fresh


@triton.jit
def _sums_of_rest(
    logits, top, inverse, distribution, column, vocabulary, alpha, beta, kids, tokens, count,
    MAPPED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Return what max(alpha p - beta q, 0) and q add up to without the ids of the first `count` nodes of `kids`."""
    masses = tl.zeros([SIZE], tl.float64)
    totals = tl.zeros([SIZE], tl.float64)
    for first in range(0, vocabulary, SIZE):
        ids = first + tl.arange(0, SIZE)
        drafted = distribution_at(distribution, column, ids, ids < vocabulary, MAPPED)
        whole = tl.exp(stretch_of(logits, ids, vocabulary) - top).to(tl.float64)
        weight = tl.maximum(alpha * (whole * inverse) - beta * drafted, 0.0)
        for j in range(0, count):
            gone = ids == tl.load(tokens + tl.load(kids + j))
            weight = tl.where(gone, 0.0, weight)
            drafted = tl.where(gone, 0.0, drafted)
        masses += weight
        totals += drafted
    return tl.sum(masses, 0), tl.sum(totals, 0)


@triton.jit
def _finish(places, shares, result, tree, width, row, distribution, removed, todo, alpha, beta, top, inverse, last):
    """Note where a tree ends, and what is to be drawn from there; without anything `last` is its last id."""
    tl.store(places + tree * 4, row)
    tl.store(places + tree * 4 + 1, distribution)
    tl.store(places + tree * 4 + 2, removed)
    tl.store(places + tree * 4 + 3, todo.to(tl.int64))
    tl.store(shares + tree * 4, alpha)
    tl.store(shares + tree * 4 + 1, beta)
    tl.store(shares + tree * 4 + 2, top.to(tl.float64))
    tl.store(shares + tree * 4 + 3, inverse)
    tl.store(result + tree * width, row)
    tl.store(result + tree * width + 1, last)


@triton.jit(do_not_specialize=["purpose"])
def standard_walk(
    logits, stride, vocabulary, table, rows, kids, starts, nodes, tokens, distributions, q, q_stride, totals, column,
    tops, sums, winners, parts, purpose, largest, rest, answers, chances, places, shares, result, width,
    GIVEN: tl.constexpr, DISTRIBUTIONS: tl.constexpr, MAPPED: tl.constexpr, CHAINS: tl.constexpr,
    NODES: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Walk one tree by rejection sampling: children are tested in order, and a rejection leaves less of p."""
    tree = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + tree), tl.load(starts + tree + 1)
    plain = tl.load(table + GREEDY * rows + start) != 0
    _join_measures(
        tops, sums, winners, start, end, parts, vocabulary, largest, rest, answers, GIVEN, ROWS, PARTS
    )  # fmt: skip
    path = _begin_path(result, tree, width)
    lane = tl.arange(0, NODES)
    row, alive = start + lane, lane < end - start
    first = tl.load(nodes + tree)
    node = alive & (lane > 0)
    token = tl.load(tokens + first + lane - 1, mask=node, other=-1).to(tl.int64)
    above = tl.load(table + ABOVE * rows + row, mask=alive, other=-2)
    own_distributions = tl.load(distributions + first + lane - 1, mask=node, other=-1).to(tl.int64)
    fresh = node
    if not CHAINS:
        fresh = _first_of_twins(table, rows, tokens, first, start, end - start, lane, node, token, above, NODES)
    weights, up = _weigh_nodes(logits, stride, vocabulary, table, rows, largest, start, row, node, token, above)
    key = tl.load(table + up, mask=node, other=0)
    position = tl.load(table + POSITION * rows + up, mask=node, other=0)
    seq = tl.load(table + SEQ_INDEX * rows + up, mask=node, other=0)
    u = uniform(key, token, position, seq, purpose)
    here = tl.min(lane, 0)
    level = here
    going = here + 1
    one = tl.sum(u * 0.0, 0) + 1.0
    alpha, beta, top, inverse = one, one * 0.0, tl.load(largest + start), one
    distribution = start * 0 - 1
    while going > 0:
        place = start + here
        top = tl.load(largest + place)
        kids_here = node & (above == here)
        left = tl.load(rest + place)
        distribution = tl.max(tl.where(kids_here, own_distributions, -1), 0)
        whole = left + tl.where(distribution < 0, tl.sum(tl.where(kids_here & fresh, weights, 0.0), 0), 0.0)
        inverse = 1.0 / tl.where(whole > 0, whole, 1.0)
        answer = tl.load(answers + place)
        total = one
        if DISTRIBUTIONS:
            total = tl.load(totals + tl.maximum(distribution, 0), mask=distribution >= 0, other=1.0)
        alpha, beta, mass = one, one * 0.0, one
        taken = here * 0 + NODES
        child = tl.min(tl.where(kids_here, lane, NODES), 0)
        tested = here * 0
        while (child < NODES) & (taken == NODES):
            mine = lane == child
            id_ = tl.sum(tl.where(mine, token, 0), 0)
            new = tl.sum(tl.where(mine & fresh, 1, 0), 0) > 0
            p = tl.sum(tl.where(mine & fresh, weights, 0.0), 0) * inverse
            drawn = new & (tl.sum(tl.where(mine, own_distributions, 0), 0) >= 0)
            drafted = one * 0.0
            if DISTRIBUTIONS:
                drafted = distribution_at(
                    q + tl.maximum(distribution, 0) * q_stride, column, id_, (distribution >= 0) & (id_ >= 0), MAPPED
                )
            weight = tl.maximum(alpha * p - beta * drafted, 0.0)
            point = tl.where(mass > 0, weight / tl.where(mass > 0, mass, 1.0), 0.0)
            possible = (drafted > 0) & (total > 0)
            divided = tl.where(possible, point * total / tl.where(possible, drafted, 1.0), 0.0)
            chance = tl.where(new, tl.where(drawn, divided, point), 0.0)
            tl.store(chances + place + child - here, chance)
            tossed = tl.sum(tl.where(mine, u, 0.0), 0) < chance
            accepted = (plain & (id_ == answer)) | ((plain == 0) & tossed)
            following = tl.min(tl.where(kids_here & (lane > child), lane, NODES), 0)
            taken = tl.where(accepted, child, taken)
            tested += 1
            live = drawn & (mass > 0) & (total > 0) & (accepted == 0)
            share = tl.where(mass > 0, mass, 1.0)
            beta = tl.where(live, beta / share + 1.0 / tl.where(total > 0, total, 1.0), beta)
            alpha = tl.where(live, alpha / share, alpha)
            if new & (following < NODES) & (accepted == 0) & (plain == 0):
                if distribution < 0:
                    mass = (left + tl.sum(tl.where(kids_here & fresh & (lane > child), weights, 0.0), 0)) * inverse
                if DISTRIBUTIONS:
                    # Summed over what remains: a difference would be rounding where the children have nearly all of it.
                    if (distribution >= 0) & is_sound(top):
                        mass, total = _sums_of_rest(
                            logits + place * stride, top, inverse, q + distribution * q_stride, column, vocabulary,
                            alpha, beta, kids + tl.load(table + FIRST * rows + place), tokens, tested, MAPPED, SIZE,
                        )  # fmt: skip
            child = following
        going = (taken < NODES).to(tl.int32)
        if taken < NODES:
            tl.store(path + level, first + taken - 1)
            level += 1
        here = tl.where(taken < NODES, taken, here)
    stop = start + here
    removed = tl.load(table + COUNT * rows + stop)
    answer = tl.load(answers + stop)
    known = plain | (is_sound(top) == 0)
    if GIVEN:
        known = known | (removed == 0)
    _finish(
        places, shares, result, tree, width, stop, distribution, removed, known == 0, alpha, beta, top, inverse,
        tl.where(plain | is_sound(top), answer, -1),
    )  # fmt: skip


@triton.jit
def block_weigh(
    logits, stride, vocabulary, table, rows, starts, nodes, tokens, distributions, q, q_stride, totals, column,
    tops, sums, winners, parts, largest, rest, inverses, answers, kept,
    GIVEN: tl.constexpr, DISTRIBUTIONS: tl.constexpr, MAPPED: tl.constexpr,
    NODES: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Fill in, for each row of one chain, 1 / its sum, and b of its own draft, 1 at the newest id."""
    tree = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + tree), tl.load(starts + tree + 1)
    plain = tl.load(table + GREEDY * rows + start) != 0
    _join_measures(
        tops, sums, winners, start, end, parts, vocabulary, largest, rest, answers, GIVEN, ROWS, PARTS
    )  # fmt: skip
    tl.debug_barrier()
    lane = tl.arange(0, NODES)
    row, alive = start + lane, lane < end - start
    node = alive & (lane > 0)
    own = tl.load(nodes + tree) + lane - 1
    token = tl.load(tokens + own, mask=node, other=-1).to(tl.int64)
    distribution = tl.load(distributions + own, mask=node, other=-1).to(tl.int64)
    weights, up = _weigh_nodes(logits, stride, vocabulary, table, rows, largest, start, row, node, token, lane - 1)
    whole = tl.load(rest + up, mask=node, other=1.0) + tl.where(distribution < 0, weights, 0.0)
    inverse = 1.0 / tl.where(whole > 0, whole, 1.0)
    tl.store(inverses + up, inverse, mask=node)
    final = tl.load(rest + end - 1)
    tl.store(inverses + end - 1, 1.0 / tl.where(final > 0, final, 1.0))
    p = weights * inverse
    ratio = p
    if DISTRIBUTIONS:
        soft = node & (distribution >= 0)
        rows_of_q = q + tl.maximum(distribution, 0) * q_stride
        drafted = distribution_at(rows_of_q, column, token, soft & (token >= 0), MAPPED)
        total = tl.load(totals + tl.maximum(distribution, 0), mask=soft, other=1.0)
        possible = (drafted > 0) & (total > 0)
        divided = tl.where(possible, p * total / tl.where(possible, drafted, 1.0), 0.0)
        ratio = tl.where(soft, divided, p)
    answer = tl.load(answers + up, mask=node, other=-1)
    ratio = tl.where(plain, tl.where((token == answer) & (token >= 0), 1.0, 0.0), ratio)
    before = tl.sum(ratio * 0.0, 0) + 1.0
    tl.store(kept + start, before)
    for at in range(1, end - start):
        before = tl.minimum(before * tl.sum(tl.where(lane == at, ratio, 0.0), 0), 1.0)
        tl.store(kept + start + at, before)


@triton.jit(do_not_specialize=["purpose"])
def block_walk(
    table, rows, starts, nodes, distributions, totals, excess, parts, purpose, largest, rest, inverses, answers, kept,
    chances, places, shares, result, width,
    GIVEN: tl.constexpr, DISTRIBUTIONS: tl.constexpr, NODES: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Make all tests of one chain, and accept the drafts up to the last one that passes."""
    tree = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + tree), tl.load(starts + tree + 1)
    plain = tl.load(table + GREEDY * rows + start) != 0
    path = _begin_path(result, tree, width)
    first = tl.load(nodes + tree)
    lane = tl.arange(0, NODES)
    row, node = start + lane, (lane > 0) & (lane < end - start)
    inner = node & (row < end - 1)
    b = tl.load(kept + row, mask=node, other=0.0)
    # A point mass after the draft takes its id out of b p; what is left was summed without it.
    mass = b * tl.load(rest + row, mask=inner, other=0.0) * tl.load(inverses + row, mask=inner, other=0.0)
    if DISTRIBUTIONS:
        at = tl.arange(0, PARTS)
        for chunk in range(start, end - 1, ROWS):
            some = chunk + tl.arange(0, ROWS)
            drawn = tl.load(distributions + first + some - start, mask=some < end - 1, other=-1) >= 0
            inside = (drawn & (some > start))[:, None] & (at < parts)[None, :]
            share = tl.load(excess + some[:, None] * parts + at[None, :], mask=inside, other=0.0)
            tl.store(excess + some * parts, tl.sum(share, 1), mask=drawn & (some > start))
        tl.debug_barrier()
        drawn = tl.load(distributions + first + lane, mask=inner, other=-1) >= 0
        mass = tl.where(drawn, tl.load(excess + row * parts, mask=inner & drawn, other=0.0), mass)
    left = mass + (1.0 - b)
    h = tl.where(left > 0, mass / tl.where(left > 0, left, 1.0), 1.0)
    h = tl.where(inner, h, b)
    tl.store(chances + row, h, mask=node)
    key = tl.load(table + row - 1, mask=node, other=0)
    position = tl.load(table + POSITION * rows + row - 1, mask=node, other=0)
    seq = tl.load(table + SEQ_INDEX * rows + row - 1, mask=node, other=0)
    began = tl.load(table + POSITION * rows + start)
    u = uniform(key, lane * 0 + began, position, seq, purpose)
    tau = tl.max(tl.where(node & (u < h), lane, 0), 0)
    tl.store(path + lane - 1, first + lane - 1, mask=node & (lane <= tau))
    stop = start + tau
    leaf = stop == end - 1
    distribution = tl.load(distributions + first + tau, mask=stop < end - 1, other=-1).to(tl.int64)
    beta = tl.sum(u * 0.0, 0)
    if DISTRIBUTIONS:
        beta = 1.0 / tl.load(totals + tl.maximum(distribution, 0))
        beta = tl.where(distribution >= 0, beta, 0.0)
    top = tl.load(largest + stop)
    known = plain | (is_sound(top) == 0)
    if GIVEN:
        known = known | leaf
    removed = tl.where(leaf | (distribution >= 0), 0, 1).to(tl.int64)
    _finish(
        places, shares, result, tree, width, stop, distribution, removed, known == 0, tl.load(kept + stop), beta, top,
        tl.load(inverses + stop), tl.where(plain | is_sound(top), tl.load(answers + stop), -1),
    )  # fmt: skip
