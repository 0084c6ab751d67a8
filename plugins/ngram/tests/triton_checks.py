"""Checks of the Triton kernel, run by test_triton_kernel.py in a process of their own; on a CPU, in the interpreter."""

from __future__ import annotations

import random

import pytest
import torch

from specdec_plugin_ngram.kernels import torch_ref
from specdec_plugin_ngram.kernels import triton as triton_op

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("latest", [False, True])
def test_equals_the_reference(latest, ragged_of):
    rng = random.Random(10 + int(latest))
    for case in range(40):
        longest = rng.choice([1, 2, 17, 60, 256, 257, 700])  # below, at and above a block of ends
        tokens, lengths = ragged_of(rng, rng.randint(1, 4), longest)
        wide = torch.zeros((tokens.shape[0], longest + 5), dtype=tokens.dtype)
        wide[:, :longest] = tokens
        tokens, lengths = wide.to(DEVICE)[:, :longest], lengths.to(DEVICE)  # rows apart, as in a persistent buffer
        if case % 2:
            tokens, lengths = tokens.to(torch.int64), lengths.to(torch.int32)
        low, k = rng.randint(1, 4), rng.randint(1, 6)
        arguments = (low, low + rng.choice([0, 1, 3, 40]), k, latest)
        got = triton_op.ngram_match(tokens, lengths, *arguments)
        want = torch_ref.ngram_match(tokens, lengths, *arguments)
        assert torch.equal(got, want), (tokens, lengths, arguments)


def test_finds_a_match_in_any_block():
    block = triton_op.BLOCK
    tokens = torch.arange(100, 100 + 5 * block, dtype=torch.int32)[None].repeat(2, 1)
    n = tokens.shape[1]
    for at in (0, block - 2, block - 1, block, 3 * block + 1):
        for latest in (False, True):
            row = tokens.clone()
            row[:, [at, at + 1]] = torch.tensor([1, 2], dtype=torch.int32)
            row[:, -2:] = torch.tensor([1, 2], dtype=torch.int32)
            lengths = torch.tensor([n, n - 1], device=DEVICE)
            draft = triton_op.ngram_match(row.to(DEVICE), lengths, 1, 3, 2, latest)
            after = row[0, at + 2 : at + 4].tolist()
            one = row[0, at + 1 : at + 3].tolist()
            assert draft.tolist() == [after, one]


def test_the_last_end_of_the_last_block_is_searched():
    tokens = torch.arange(4 * triton_op.BLOCK + 1, dtype=torch.int32, device=DEVICE)[None]
    tokens[0, -1] = tokens[0, -2]
    lengths = torch.tensor([tokens.shape[1]], device=DEVICE)
    assert triton_op.ngram_match(tokens, lengths, 1, 3, 2, False).tolist() == [[int(tokens[0, -1]), -1]]


def test_nothing_to_search_gives_padding():
    for rows, width, k in ((0, 5, 3), (2, 0, 3), (2, 1, 3), (2, 5, 0)):
        tokens = torch.zeros((rows, width), dtype=torch.int32, device=DEVICE)
        drafts = triton_op.ngram_match(tokens, torch.zeros(rows, dtype=torch.int32, device=DEVICE), 1, 2, k)
        assert drafts.shape == (rows, k)
        assert bool((drafts == -1).all())
