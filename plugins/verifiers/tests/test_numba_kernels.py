"""The ops in numba give what their definitions give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_core.noise import Noise, Purpose, uniform
from specdec_plugin_verifiers.kernels import torch_ref

numba_ops = pytest.importorskip("specdec_plugin_verifiers.kernels.numba")
CASES = 150


def test_acceptance_ratios_and_what_is_left(families_of):
    rng = np.random.default_rng(1)
    above, below = 0, 0
    for _ in range(CASES):
        arguments = families_of(rng)
        got, want = numba_ops.accept(**arguments), torch_ref.accept(**arguments)
        for mine, reference in zip(got, want, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-12)
        above, below = above + int((want[0] > 1).sum()), below + int(((want[0] > 0) & (want[0] < 1)).sum())
    assert above > 40
    assert below > 50


def test_what_a_nearly_sure_drafter_leaves(sure_families_of):
    """Compared without an absolute tolerance, since what is left is tiny, and it is all that there is to draw from."""
    rng, small = np.random.default_rng(7), 0
    for _ in range(CASES):
        arguments = sure_families_of(rng)
        got, want = numba_ops.accept(**arguments), torch_ref.accept(**arguments)
        for mine, reference in zip(got, want, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-9, atol=0)
        small += int((arguments["distributions"].q[:, 1:].sum(1) < 1e-12).sum())
    assert small > 3


def test_masses(families_of, remainder_of):
    rng = np.random.default_rng(2)
    for _ in range(CASES):
        families = families_of(rng)
        left = remainder_of(rng, families)
        got, want = (op.excess(families["p"], left, families["distributions"]) for op in (numba_ops, torch_ref))
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


def test_draws_are_equal_to_the_bit(families_of, remainder_of, noise_of):
    rng = np.random.default_rng(3)
    empty = 0
    for _ in range(CASES):
        families = families_of(rng)
        left = remainder_of(rng, families)
        given = families["p"], left, families["distributions"], noise_of(rng, len(families["p"])), Purpose.RESIDUAL
        got = numba_ops.residual(*given)
        assert torch.equal(got, torch_ref.residual(*given))
        empty += int((got == -1).sum())
    assert 0 < empty < CASES


@pytest.mark.parametrize("op", [torch_ref, numba_ops], ids=["reference", "numba"])
def test_uniforms_are_those_of_the_definition(op, noise_of):
    rng = np.random.default_rng(4)
    noise, words = noise_of(rng, 50), torch.from_numpy(rng.integers(0, 2**31, (50, 3)))
    got = op.uniform(noise, Purpose.ACCEPT, words)
    assert got.dtype is torch.float64
    for row in range(50):
        place = int(noise.keys[row]), int(noise.positions[row]), int(noise.seq_index[row]), Purpose.ACCEPT
        assert got[row].tolist() == [uniform(*place, word) for word in words[row].tolist()]


def test_inputs_stay_as_they_are(families_of, remainder_of, noise_of):
    rng = np.random.default_rng(5)
    for op in (torch_ref, numba_ops):
        for _ in range(30):
            families = families_of(rng)
            left, distributions = remainder_of(rng, families), families["distributions"]
            tensors = [families[name] for name in ("p", "tokens", "soft", "q_row")]
            tensors += [distributions.q, distributions.total, left.alpha, left.beta, left.removed]
            kept = [tensor.clone() for tensor in tensors]
            noise = noise_of(rng, len(families["p"]))
            op.accept(**families)
            op.excess(families["p"], left, distributions)
            op.residual(families["p"], left, distributions, noise, 3)
            op.uniform(noise, 3, families["tokens"])
            assert all(torch.equal(*pair) for pair in zip(tensors, kept, strict=True))


def test_a_draw_depends_on_its_own_row_alone(families_of, remainder_of, noise_of):
    rng = np.random.default_rng(6)
    for op in (torch_ref, numba_ops):
        families = families_of(rng, size=1025)
        left, noise = remainder_of(rng, families), noise_of(rng, len(families["p"]))
        whole = op.residual(families["p"], left, families["distributions"], noise, 3)
        for i, row in enumerate(left.rows.tolist()):
            one = type(left)(
                *(getattr(left, name)[i : i + 1] for name in ("rows", "alpha", "beta", "q_row", "removed"))
            )
            one.rows = torch.zeros(1, dtype=torch.int64)
            alone = Noise(*(a[row : row + 1] for a in (noise.keys, noise.positions, noise.seq_index)))
            assert op.residual(families["p"][row : row + 1], one, families["distributions"], alone, 3)[0] == whole[i]
