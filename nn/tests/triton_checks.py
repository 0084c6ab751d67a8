"""Checks of Triton kernels, run by test_triton_ops.py in a process of their own; on a CPU, in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from specdec_core.noise import Noise
from specdec_nn.ops.draw import triton as draw_triton
from specdec_nn.ops.draw.reference import draw_reference
from specdec_nn.ops.logprobs import triton as logprobs_triton
from specdec_nn.ops.logprobs.reference import logprobs_reference
from specdec_nn.ops.race.reference import exponential_of_word
from specdec_nn.ops.top_ids import triton as top_triton
from specdec_nn.ops.top_ids.reference import top_ids_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = (1, 64, 65, 150)
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    """Cut small rows into several stretches."""
    for module in (draw_triton, logprobs_triton, top_triton):
        monkeypatch.setattr(module, "STRETCH", 64)


def noise_of(rng, rows):
    keys = rng.integers(0, 2**64, rows, dtype=np.uint64)
    return Noise(keys, *(rng.integers(0, 2**31, rows).astype(np.int32) for _ in range(2)))


def logits_of(rng, rows, vocabulary, dtype=torch.float32):
    """Rows of all kinds: smooth, with many equal values, with most ids excluded, with one id left."""
    x = rng.normal(0, rng.choice([0.1, 1, 4], (rows, 1)), (rows, vocabulary))
    x[1::4] = np.round(x[1::4])
    x[2::4][rng.random(x[2::4].shape) < 0.8] = -np.inf
    x[3::4] = -np.inf
    x[np.arange(rows), rng.integers(0, vocabulary, rows)] = 2.0
    return torch.from_numpy(x).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", SIZES)
def test_draws_are_those_of_the_definition(vocabulary, dtype):
    rng = np.random.default_rng(vocabulary)
    for greedy in (np.zeros(8, np.bool_), np.arange(8) % 2 == 0):
        logits, noise = logits_of(rng, 8, vocabulary, dtype), noise_of(rng, 8)
        assert torch.equal(draw_triton.draw(logits, noise, greedy), draw_reference(logits, noise, greedy))


def test_many_sampled_rows_draw_what_the_definition_draws(monkeypatch):
    """With one stretch and with several, so that a factor between stretches that is missing would be seen."""
    rng = np.random.default_rng(0)
    logits, noise, sampled = logits_of(rng, 24, 90), noise_of(rng, 24), np.zeros(24, np.bool_)
    want = draw_reference(logits, noise, sampled)
    for stretch in (32, 128):
        monkeypatch.setattr(draw_triton, "STRETCH", stretch)
        assert torch.equal(draw_triton.draw(logits, noise, sampled), want)


@triton.jit
def rough_of(words, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, draw_triton.rough_noise(tl.load(words + at).to(tl.uint32)))


def test_rough_noise_is_close_enough_to_choose_candidates_by():
    """Closer than the share of the best score from which on candidates are looked at exactly."""
    edges = [0, 1, 2, 2**32 - 1, 2**32 - 2, 2**32 - 3, *(2**26 + d for d in (-1, 0, 1))]
    edges += [2**32 - 2**26 + d for d in (-1, 0, 1)]
    rng = np.random.default_rng(1)
    words = np.concatenate([edges, 2**32 - 1 - 2 ** rng.uniform(0, 32, 2000), rng.integers(0, 2**32, 2084)])
    given = torch.from_numpy(words[:4096].astype(np.int64)).to(DEVICE)
    out = torch.empty(len(given), device=DEVICE)
    rough_of[(1,)](given, out, SIZE=len(given))
    exact = exponential_of_word(given.cpu())
    assert float(((out.cpu().double() - exact) / exact).abs().max()) < 1e-4
    assert draw_triton._CLOSE.value < (1 - 1e-4) / (1 + 1e-4)


def test_ties_go_to_the_lowest_id_and_rows_without_a_distribution_give_none():
    logits = torch.zeros(7, 200, device=DEVICE)
    logits[0, [70, 71, 199]] = 3.0
    logits[1] = -torch.inf
    logits[2, 150] = torch.nan
    logits[3, 3] = torch.inf
    logits[4] = -0.0
    logits[4, 64:] = 0.0
    logits[5] = -torch.inf
    logits[5, 130] = -1e30
    noise = noise_of(np.random.default_rng(2), 7)
    drawn = draw_triton.draw(logits, noise, np.ones(7, np.bool_))
    assert drawn.tolist() == [70, -1, -1, -1, 0, 130, 0]
    sampled = draw_triton.draw(logits, noise, np.zeros(7, np.bool_)).tolist()
    assert sampled[1:4] == [-1, -1, -1] and sampled[5] == 130
    assert torch.equal(drawn, draw_reference(logits, noise, np.ones(7, np.bool_)))


def test_a_draw_reads_its_own_row_and_nothing_else():
    """Rows are views into a wider tensor of NaN, and every other row is NaN."""
    rng = np.random.default_rng(3)
    wide = torch.full((9, 200), torch.nan, device=DEVICE)
    wide[::2, :130] = logits_of(rng, 5, 130)
    noise, greedy = noise_of(rng, 9), np.arange(9) % 4 == 0
    own = slice(None, None, 2)
    alone = Noise(noise.keys[own], noise.positions[own], noise.seq_index[own])
    want = draw_reference(wide[::2, :130], alone, greedy[::2])
    assert torch.equal(draw_triton.draw(wide[:, :130], noise, greedy)[::2], want)
    assert torch.equal(draw_triton.draw(wide[::2, :130].mT.contiguous().mT, alone, greedy[::2]), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", SIZES)
def test_the_best_ids_are_those_of_a_stable_sort(vocabulary, dtype):
    logits = logits_of(np.random.default_rng(vocabulary), 8, vocabulary, dtype)
    values, order = torch.sort(logits.float(), dim=-1, descending=True, stable=True)
    expected = torch.log_softmax(logits.double(), -1)
    for n in (1, 5, 20):
        ids, logprobs = top_triton.top_ids(logits, n)
        found = min(n, vocabulary)
        there = torch.isfinite(values[:, :found])
        assert torch.equal(ids[:, :found], torch.where(there, order[:, :found], -1).int())
        assert (ids[:, found:] == -1).all() and torch.isneginf(logprobs[:, found:]).all()
        want = torch.where(there, expected.gather(1, order[:, :found]), -torch.inf).float()
        torch.testing.assert_close(logprobs[:, :found], want, rtol=1e-6, atol=2e-6)


def test_rows_without_a_distribution_have_no_best_ids():
    logits = torch.zeros(5, 200, device=DEVICE)
    logits[0] = -torch.inf
    logits[1, 199] = torch.nan
    logits[2, 3] = torch.inf
    logits[3] = -torch.inf
    logits[3, [150, 7]] = torch.tensor([2.0, 1.0], device=DEVICE)
    for n in (1, 3):
        for got, want in zip(top_triton.top_ids(logits[:4], n), top_ids_reference(logits[:4], n), strict=True):
            torch.testing.assert_close(got, want)
    assert top_triton.top_ids(logits, 4)[0][4].tolist() == [0, 1, 2, 3]
    assert [part.shape for part in top_triton.top_ids(logits[:0], 3)] == [(0, 3)] * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", SIZES)
def test_log_probabilities_and_ranks_are_those_of_the_definition(vocabulary, dtype):
    rng = np.random.default_rng(vocabulary)
    logits = logits_of(rng, 8, vocabulary, dtype)
    chosen = torch.from_numpy(rng.integers(0, vocabulary, 8)).to(DEVICE)
    (values, ranks), (want, places) = (op(logits, chosen) for op in (logprobs_triton.logprobs, logprobs_reference))
    assert torch.equal(ranks, places)
    torch.testing.assert_close(values, want, rtol=1e-6, atol=2e-6)
    order = torch.sort(logits.float(), dim=-1, descending=True, stable=True).indices
    assert torch.equal(order.gather(1, ranks[:, None] - 1)[:, 0], chosen)


def test_log_probabilities_of_rows_without_a_distribution_are_no_numbers():
    logits = torch.zeros(3, 100, device=DEVICE)
    logits[0, 99], logits[1, 0] = torch.nan, torch.inf
    chosen = torch.tensor([5, 5, 5], device=DEVICE)
    for op in (logprobs_triton.logprobs, logprobs_reference):
        values = op(logits, chosen)[0]
        assert torch.isnan(values[0]) and not torch.isfinite(values[1]) and torch.isfinite(values[2])
    assert [part.shape for part in logprobs_triton.logprobs(logits[:0], chosen[:0])] == [(0,)] * 2


def test_no_rows_draw_nothing():
    noise = noise_of(np.random.default_rng(4), 0)
    assert draw_triton.draw(torch.zeros(0, 9, device=DEVICE), noise, np.zeros(0, np.bool_)).shape == (0,)
