"""The kernel that fills in the tables of trees whose form is on the device, one program a tree."""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201
from __future__ import annotations

import triton
import triton.language as tl

from specdec_nn.ops.triton_cache import check_cache
from specdec_plugin_verifiers.kernels.verify.stretches import ABOVE, COUNT, FIRST, POSITION

check_cache()

_TWINS = tl.constexpr(16)  # nodes that are compared with all others together


@triton.jit
def grow(parents, nodes, starts, table, rows, kids, NODES: tl.constexpr):
    """Fill in what follows from the form of one tree, which the host does not know; it gave all rows one position."""
    tree = tl.program_id(0).to(tl.int64)
    start, end = tl.load(starts + tree), tl.load(starts + tree + 1)
    first = tl.load(nodes + tree)
    above_of = parents + first - 1  # at a row of the tree: its parent's row - 1
    lane = tl.arange(0, NODES)
    alive = lane < end - start
    node = alive & (lane > 0)
    above = tl.load(above_of + lane, mask=node, other=-2).to(tl.int32) + 1
    depth = lane * 0
    up = above
    while tl.max(up, 0) >= 0:
        depth += (up >= 0).to(tl.int32)
        up = tl.load(above_of + up, mask=up > 0, other=-2).to(tl.int32) + 1
    count, before, rank = lane * 0, lane * 0, lane * 0
    for chunk in range(0, NODES, _TWINS):
        other = chunk + tl.arange(0, _TWINS)
        there = (other > 0) & (other < end - start)
        parent = tl.load(above_of + other, mask=there, other=NODES).to(tl.int32) + 1
        parent, twin = parent[None, :], other[None, :]
        count += tl.sum((parent == lane[:, None]).to(tl.int32), 1)
        before += tl.sum((parent < lane[:, None]).to(tl.int32), 1)
        earlier = (parent < above[:, None]) | ((parent == above[:, None]) & (twin < lane[:, None]))
        rank += tl.sum(earlier.to(tl.int32), 1)
    row = table + start + lane
    tl.store(row + POSITION * rows, tl.load(row + POSITION * rows, mask=alive, other=0) + depth, mask=alive)
    tl.store(row + ABOVE * rows, above.to(tl.int64), mask=alive)
    tl.store(row + FIRST * rows, first + before, mask=alive)
    tl.store(row + COUNT * rows, count.to(tl.int64), mask=alive)
    tl.store(kids + first + rank, first + lane - 1, mask=node)
