"""Run by test_tree_ops in a process of its own, with TRITON_INTERPRET=1: the Triton forms against the definitions."""

import numpy as np
import torch

from specdec_nn.cache.arena import KVArena, Segment
from specdec_nn.ops.ancestor_bits import triton as trees_triton
from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference
from specdec_nn.ops.compact import triton as compact_triton
from specdec_nn.ops.compact.reference import compact_reference


def check_bits(rng):
    for trial in range(12):
        lengths = [int(n) for n in rng.integers(0, 150 if trial % 2 else 20, int(rng.integers(0, 4)))]
        parents = [int(rng.integers(-1, i)) for n in lengths for i in range(n)]
        given = torch.tensor(parents, dtype=torch.int32)
        assert torch.equal(trees_triton.ancestor_bits(given, lengths), ancestor_bits_reference(given, lengths))
    chain = torch.arange(-1, 129, dtype=torch.int32)
    assert torch.equal(trees_triton.ancestor_bits(chain, [130]), ancestor_bits_reference(chain, [130]))


def check_moves(rng):
    for dtype, dims, width in ((torch.float32, 8, 12), (torch.bfloat16, 5, 3), (torch.float16, 6, 6)):
        results = []
        for op in (compact_reference, compact_triton.compact):
            arena, segments = KVArena(300, torch.device("cpu"), page_size=7, compact=op), [Segment(), Segment()]
            torch.manual_seed(0)
            for layer, heads in ((0, 2), (1, 3)):
                k, v = torch.zeros(1, heads, dims, dtype=dtype), torch.zeros(1, heads, width, dtype=dtype)
                for pages in arena.layer(layer, k, v):
                    pages.copy_(torch.randn(pages.shape))
            for segment in segments:
                arena.reserve(segment, 120)
            paths = [np.array(path, np.int32) for path in ([0, 2, *range(5, 60, 2)], [3, 4, 5])]
            arena.keep([(segments[0], 11, paths[0]), (segments[1], 2, paths[1])])
            results.append([pages.clone() for layer in (0, 1) for pages in arena._layers[layer]])
        assert all(map(torch.equal, *results))


if __name__ == "__main__":
    check_bits(np.random.default_rng(0))
    check_moves(np.random.default_rng(1))
    print("equal")
