"""Tree bits inside Triton kernels: what a row's words of int32 say about its ancestors; they know nothing of attention.

The words are the int64 of `ancestor_bits` read as halves: bit b of a row means that node b is the row or above it.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN201
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ones(x):
    """Return how many bits of a block of int32 are set."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    return (x + (x >> 16)) & 0x3F


@triton.jit
def within(row_bits, alive, words, b, window):
    """Return, for rows [M] and nodes b [N], whether at most `window` ancestors of a row are at b or after it."""
    count = tl.zeros((row_bits.shape[0], b.shape[0]), tl.int32)
    sign = tl.zeros((1, b.shape[0]), tl.int32) - 2
    for n in range(0, words):
        word = tl.load(row_bits + n, mask=alive, other=0)[:, None]
        shift = tl.minimum(tl.maximum(b - n * 32, 0), 31)[None, :]
        later = (word >> shift) & ~(sign << (31 - shift))
        count += tl.where((b < n * 32 + 32)[None, :], ones(later), 0)
    return count <= window


@triton.jit
def node_of(path, words, i):
    """Return the number of the i-th node of a path, for i [N], from the bits of its last row."""
    node = i * 0
    place = tl.arange(0, 32)
    bit = (place * 0 + 1) << place
    before = 0
    for n in range(0, words):
        word = tl.load(path + n)
        rank = before + ones(word & (bit - 1))
        found = ((word & bit) != 0)[None, :] & (rank[None, :] == i[:, None])
        node += tl.sum(tl.where(found, (place + n * 32)[None, :], 0), 1)
        before += ones(word)
    return node
