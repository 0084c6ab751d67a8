"""The op `ancestor_bits` on a GPU; under TRITON_INTERPRET=1 the same source runs on a CPU.

A node cannot wait for the bits of its parent, which another thread makes, so each walks up to the newest id by itself.
"""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_nn.device_copies import to_device
from specdec_nn.ops.ancestor_bits.reference import words_of
from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache

check_cache()

ROWS: Final = 64  # rows a program


@triton.jit
def _walk(parents, first_nodes, bits, words, WORDS: tl.constexpr, SIZE: tl.constexpr):
    tree = tl.program_id(0)
    first = tl.load(first_nodes + tree)
    rows = tl.load(first_nodes + tree + 1) - first + 1
    row = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    word = tl.arange(0, WORDS)
    alive = row < rows
    at = tl.where(alive, row, -1)
    found = tl.zeros((SIZE, WORDS), dtype=tl.int64)
    one = found + 1
    while tl.max(at, 0) >= 0:
        bit = one << (at % 64).to(tl.int64)[:, None]
        found = tl.where((at >= 0)[:, None] & (word[None, :] == (at // 64)[:, None]), found | bit, found)
        at = tl.load(parents + first + at - 1, mask=at > 0, other=-2) + 1
    place = bits + (first + tree + row)[:, None] * words + word[None, :]
    tl.store(place, found, mask=alive[:, None] & (word < words)[None, :])


def ancestor_bits(parents: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the bits of the rows of n trees; see `ancestor_bits_reference` for arguments, shapes and meaning."""
    device, words = parents.device, words_of(lengths)
    bits = torch.empty((len(parents) + len(lengths), words), dtype=torch.int64, device=device)
    if not len(bits):
        return bits
    first_nodes = to_device(np.cumsum([0, *lengths], dtype=np.int32), device)
    grid = (len(lengths), triton.cdiv(max(lengths) + 1, ROWS))
    size = triton.next_power_of_2(words)
    _walk[grid](parents.to(torch.int32).contiguous(), first_nodes, bits, words, WORDS=size, SIZE=ROWS)
    return bits


def ptx_cases() -> list[PtxCase]:
    """Return what the kernel is compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    types = {"*i32": "parents first_nodes", "*i64": "bits"}
    return [PtxCase(_walk, types, {"WORDS": words, "SIZE": ROWS}, label=f"{words} words") for words in (1, 4)]
