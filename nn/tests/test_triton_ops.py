"""The Triton forms of `draw`, `top_ids` and `logprobs` pass their checks; the definitions are tested here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specdec_core.noise import Noise
from specdec_nn.drafters.draft_sampler import largest, largest_by_keys
from specdec_nn.ops.draw.numba import draw
from specdec_nn.ops.draw.reference import draw_reference
from specdec_nn.ops.logprobs.reference import logprobs_reference
from specdec_nn.ops.race.reference import race_reference
from specdec_testing.triton_checks import assert_triton_checks_pass


@pytest.mark.slow
def test_triton_passes_its_checks() -> None:
    assert_triton_checks_pass(Path(__file__).with_name("triton_checks.py"))


def noise_of(rng: np.random.Generator, rows: int) -> Noise:
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    return Noise(keys, *(rng.integers(0, 2**31, rows).astype(np.int32) for _ in range(2)))


@pytest.mark.parametrize("op", [draw, draw_reference], ids=["numba", "reference"])
def test_a_row_gives_its_largest_id_or_the_winner_of_its_race_or_none(op) -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 2, (6, 50)).astype(np.float32))
    logits[0, [3, 7]] = 9.0
    logits[1], logits[2, 4], logits[3, 49] = -torch.inf, torch.nan, torch.inf
    noise, raced = noise_of(rng, 6), torch.softmax(logits, -1)
    winners = race_reference(raced, noise, 0).tolist()
    assert op(logits, noise, np.zeros(6, np.bool_)).tolist() == winners
    best = op(logits, noise, np.ones(6, np.bool_)).tolist()
    assert best == [3, -1, -1, -1, *logits[4:].argmax(-1).tolist()]
    mixed = op(logits, noise, np.array([True, False, True, False, True, False])).tolist()
    assert mixed == [3, -1, -1, -1, best[4], winners[5]]
    assert op(logits[:0], noise_of(rng, 0), np.zeros(0, np.bool_)).shape == (0,)


def test_a_rank_is_the_place_in_a_stable_sort_and_log_probabilities_add_up() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, -torch.inf]])
    found = [logprobs_reference(logits, torch.tensor([token])) for token in range(4)]
    assert [rank.item() for _, rank in found] == [3, 1, 2, 4]
    assert sum(value.exp().item() for value, _ in found) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_largest_by_keys_are_the_largest(dtype: torch.dtype) -> None:
    x = (torch.randn(6, 200, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    x[1] = x[1].round()
    x[2, 100:] = -torch.inf
    x[3], x[3, ::2] = 0.0, -0.0
    for k in (1, 5, 120):
        for got, want in zip(largest_by_keys(x, k), largest(x, k), strict=True):
            assert torch.equal(got, want)
