"""The top_ids op: both backends return what a sorted softmax has, on ties, gaps and rows without a distribution."""

import numpy as np
import pytest
import torch

from specdec_nn.ops.top_ids.numba import top_ids
from specdec_nn.ops.top_ids.reference import top_ids_reference

BACKENDS = [pytest.param(top_ids, id="numba"), pytest.param(top_ids_reference, id="reference")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("rows", "vocabulary", "n"), [(1, 1, 1), (3, 63, 8), (5, 64, 64), (4, 65, 3), (2, 5000, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ids_and_log_probabilities_are_those_of_a_sorted_softmax(backend, rows, vocabulary, n, dtype):
    logits = (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 4).to(dtype)
    ids, logprobs = backend(logits, n)
    expected = torch.log_softmax(logits.double(), -1)
    assert ids.shape == logprobs.shape == (rows, n)
    for row in range(rows):
        assert len(set(ids[row].tolist())) == n
        torch.testing.assert_close(logprobs[row].double(), expected[row][ids[row].long()], rtol=0, atol=2e-6)
        torch.testing.assert_close(
            logprobs[row].double(), expected[row].sort(descending=True).values[:n], rtol=0, atol=2e-6
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_without_a_finite_logit_are_empty(backend):
    nothing, some = torch.full((2, 200), -torch.inf)
    some[150], some[7] = 2.0, 1.0
    broken = torch.zeros(200)
    broken[199] = torch.nan
    endless = torch.zeros(200)
    endless[3] = torch.inf
    ids, logprobs = backend(torch.stack([nothing, broken, endless, some]), 3)
    assert ids.tolist() == [[-1] * 3, [-1] * 3, [-1] * 3, [150, 7, -1]]
    assert torch.isneginf(logprobs).tolist() == [[True] * 3] * 3 + [[False, False, True]]
    assert logprobs[3].exp().sum().item() == pytest.approx(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", [0, 70, 199])
@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000], ids=["nan", "-nan"])
def test_a_nan_anywhere_empties_the_row(backend, where, bits):
    row = torch.arange(200.0)
    row[where] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    assert backend(row[None], 1)[0].tolist() == [[-1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_fewer_ids_than_were_asked_for_leave_places_empty(backend):
    ids, logprobs = backend(torch.tensor([[0.0, 1.0]]), 4)
    assert ids.tolist() == [[1, 0, -1, -1]]
    assert np.isneginf(logprobs.numpy()).tolist() == [[False, False, True, True]]


def test_no_rows_give_no_rows():
    ids, logprobs = top_ids(torch.empty(0, 9), 2)
    assert ids.shape == logprobs.shape == (0, 2)


def test_of_equal_logits_the_compiled_backend_takes_the_lowest_ids():
    assert top_ids(torch.zeros(1, 1000), 4)[0].tolist() == [[0, 1, 2, 3]]
