"""A tree whose form stays on its device has the nodes, in the order, of one that the host picks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_plugin_eagle.dynamic_tree import likeliest, likeliest_there

K, LEVELS = 3, 4


def grown(seed: int, requests: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, scores and parents of lists as a plan makes them, with equal scores among them."""
    rng = np.random.default_rng(seed)
    count = K + (LEVELS - 1) * K * K
    scores, parents = np.zeros((requests, count), np.float32), np.zeros((requests, count), np.int64)
    for row in range(requests):
        frontier, at = [(-1, 0.0)], 0
        while at < count:
            children = []
            for parent, score in frontier:
                for _ in range(K):
                    parents[row, at], scores[row, at] = parent, score - rng.integers(0, 3) / 2
                    children.append((at, scores[row, at]))
                    at += 1
            frontier = sorted(children, key=lambda child: -child[1])[:K]
    tokens = rng.integers(0, 50, scores.shape)
    return torch.from_numpy(tokens), torch.from_numpy(scores), torch.from_numpy(parents)


@pytest.mark.parametrize("limits", [[8, 8, 8], [1, 7, 30], [100, 2, 30], [100, 100, 100]])
def test_the_nodes_are_those_that_the_host_picks(limits: list[int]) -> None:
    for seed in range(4):
        lists = grown(seed, len(limits))
        wanted = likeliest(*(part.numpy() for part in lists), np.array(limits, np.int32))
        found = likeliest_there(*lists, np.array(limits, np.int32))
        assert list(found.lengths) == list(wanted.lengths)
        assert found.tokens.numpy().tolist() == wanted.tokens.tolist()
        assert found.parents.numpy().tolist() == wanted.parents.tolist()
        np.testing.assert_allclose(found.confidence.numpy(), wanted.confidence, rtol=1e-6)
        assert found.tokens.dtype == found.parents.dtype == torch.int32
