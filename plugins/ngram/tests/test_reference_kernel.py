"""The op `ngram_match`: its definition in torch follows the rule, row by row."""

from __future__ import annotations

import random

import pytest
import torch

from specdec_plugin_ngram.kernels import torch_ref


@pytest.mark.parametrize("latest", [False, True])
def test_reference_follows_the_rule(latest, expected, ragged_of):
    rng = random.Random(int(latest))
    for _ in range(200):
        tokens, lengths = ragged_of(rng, rng.randint(1, 9), rng.randint(1, 60))
        low, k = rng.randint(1, 4), rng.randint(1, 6)
        high = low + rng.choice([0, 1, 3, 40])
        drafts = torch_ref.ngram_match(tokens, lengths, low, high, k, latest)
        assert drafts.dtype == tokens.dtype
        for row, n, draft in zip(tokens.tolist(), lengths.tolist(), drafts.tolist(), strict=True):
            want = expected(row[:n], low, high, k, "latest" if latest else "earliest")
            assert draft == want + [-1] * (k - len(want))


def test_nothing_to_search_gives_padding():
    for rows, width, k in ((0, 5, 3), (2, 0, 3), (2, 1, 3), (2, 5, 0)):
        tokens = torch.zeros((rows, width), dtype=torch.int32)
        drafts = torch_ref.ngram_match(tokens, torch.zeros(rows, dtype=torch.int32), 1, 2, k)
        assert drafts.shape == (rows, k)
        assert bool((drafts == -1).all())
