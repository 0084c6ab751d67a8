"""Worked buffers of a tree, as the method's own code makes them."""

from __future__ import annotations

import medusa_oracle as oracle
import torch

from specdec_core.token_tree import TokenTree, parse_tree
from specdec_nn.ops.ancestor_bits.reference import ancestor_bits_reference, depths


def test_the_worked_buffers_are_those_of_the_method() -> None:
    """Choices (0), (1), (0,0), (1,0), (0,0,0): places of candidates, depths, leaves and mask rows."""
    paths = parse_tree("[(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]")
    assert oracle.tree_indices(paths) == [0, 1, 2, 11, 11, 21]
    tree = TokenTree(paths)
    bits = ancestor_bits_reference(torch.tensor(tree.parents, dtype=torch.int32), [len(tree)]).numpy()
    assert depths(bits).tolist() == [0, 1, 1, 2, 2, 3]
    rows = ["".join(str(int(row) >> bit & 1) for bit in range(6)) for row in bits[:, 0]]
    assert rows == ["100000", "110000", "101000", "110100", "101010", "110101"]
    leaves = [node for node in range(len(tree)) if node not in tree.parents]
    ways = [[bit for bit in range(6) if int(bits[leaf + 1, 0]) >> bit & 1] for leaf in leaves]
    assert sorted(ways, key=len, reverse=True) == [[0, 1, 3, 5], [0, 2, 4]]
