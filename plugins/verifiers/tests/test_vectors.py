"""Worked examples of each rule, with numbers that were computed by hand or by another program."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specdec_core.draft import Draft
from specdec_plugin_verifiers.block import BlockTests, remainders
from specdec_plugin_verifiers.distributions import Remainder
from specdec_plugin_verifiers.kernels import torch_ref
from specdec_plugin_verifiers.options import SyntheticOptions, TypicalOptions
from specdec_plugin_verifiers.synthetic import conditional
from specdec_plugin_verifiers.typical import thresholds

P = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [1 / 3] * 3]
Q = [[0.2, 0.5, 0.3], [0.6, 0.2, 0.2]]


def draft():
    return Draft([2], np.array([1, 0], np.int32), q=torch.tensor(Q), q_row=np.array([0, 1], np.int32))


def normalised(weights):
    return (weights / weights.sum(1, keepdim=True)).tolist()


def test_standard(trial):
    call = trial(draft(), P)
    families = call.forest.families(np.arange(3))
    given = [torch.from_numpy(part) for part in (families.tokens, families.soft, families.q_row)]
    p = torch.softmax(call.logits, -1)
    ratio, alpha, beta = call.op("accept")(p, *given, call.distributions)
    assert ratio[:2, 0].tolist() == pytest.approx([0.6, 1 / 3])
    left = Remainder(torch.arange(2), alpha[:2], beta[:2], given[2][:2], given[0][:2])
    assert normalised(torch_ref.weights(p, left, call.distributions))[0] == pytest.approx([1, 0, 0])


def test_block(trial):
    call = trial(draft(), P)
    tests = BlockTests.of(call, np.arange(2))
    assert tests.b[0].tolist() == pytest.approx([0.6, 0.2])
    assert tests.h[0].tolist() == pytest.approx([0.2, 0.2])
    following = remainders(call, tests.families, torch.tensor([1]), tests.b[0, :1])
    assert torch_ref.excess(tests.p, following, call.distributions).item() == pytest.approx(0.1)
    left = remainders(call, tests.families, torch.tensor([0, 1]), torch.cat([torch.ones(1), tests.b[0, :1]]))
    residuals = normalised(torch_ref.weights(tests.p, left, call.distributions))
    assert residuals[0] == pytest.approx([1, 0, 0], abs=1e-6)
    assert residuals[1] == pytest.approx([0, 1, 0], abs=1e-6)


def test_synthetic():
    of_length = SyntheticOptions(synthetic_acceptance_length=2.5).rates(4)
    assert of_length == (1.0, 0.5, 0.0, 0.0)
    assert conditional(of_length).tolist() == [1.0, 0.5, 0.0, 0.0]
    given = SyntheticOptions(synthetic_acceptance_rates=(0.8, 0.6, 0.3))
    assert conditional(given.rates(3)).tolist() == pytest.approx([0.8, 0.75, 0.5])
    assert 1 + sum(given.rates(3)) == pytest.approx(2.7)


@pytest.mark.parametrize(
    ("p", "threshold", "stand"),
    [
        ([0.5, 0.3, 0.2], 0.09, [0, 1, 2]),
        ([0.01] * 100, 0.003, list(range(100))),
        ([0.97, 0.01, 0.01, 0.01], 0.09, [0]),
        ([1.0, 0.0, 0.0], 0.09, [0]),
    ],
)
def test_typical(p, threshold, stand):
    options = TypicalOptions()
    distribution = torch.tensor([p])
    least = thresholds(distribution, options.posterior_threshold, options.posterior_alpha)
    assert least.item() == pytest.approx(threshold, rel=0.01)
    assert (distribution[0] > least).nonzero()[:, 0].tolist() == stand


def test_the_entropy_that_typical_acceptance_asks_for():
    distribution = torch.tensor([[0.5, 0.3, 0.2]])
    assert thresholds(distribution, 10.0, 1.0).item() == pytest.approx(math.exp(-1.0297), abs=1e-4)
