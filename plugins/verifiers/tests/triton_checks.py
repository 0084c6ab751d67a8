"""Checks of the Triton kernels, run by test_triton_kernels.py in a process of their own; on a CPU, interpreted."""

from __future__ import annotations

import dataclasses
from dataclasses import fields

import numpy as np
import torch

from specdec_core.noise import Purpose
from specdec_plugin_verifiers.block import chain_of_tests
from specdec_plugin_verifiers.distributions import Distributions, Remainder
from specdec_plugin_verifiers.kernels import torch_ref
from specdec_plugin_verifiers.kernels import triton as triton_ops
from specdec_plugin_verifiers.standard import at_once
from specdec_plugin_verifiers.trial import Judge

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = 12


def there(value):
    """Move tensors, and what holds them, to the device."""
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    if isinstance(value, Distributions | Remainder):
        return type(value)(*(there(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, dict):
        return {name: there(part) for name, part in value.items()}
    return value


def test_acceptance_ratios_and_what_is_left(families_of):
    rng = np.random.default_rng(1)
    for _ in range(CASES):
        arguments = there(families_of(rng))
        got, want = triton_ops.accept(**arguments), torch_ref.accept(**arguments)
        for mine, reference in zip(got, want, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-12)


def test_what_a_nearly_sure_drafter_leaves(sure_families_of):
    """Compared without an absolute tolerance, since what is left is tiny, and it is all that there is to draw from."""
    rng, small = np.random.default_rng(7), 0
    for _ in range(CASES):
        arguments = there(sure_families_of(rng))
        got, want = triton_ops.accept(**arguments), torch_ref.accept(**arguments)
        for mine, reference in zip(got, want, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-9, atol=0)
        small += int((arguments["distributions"].q[:, 1:].sum(1) < 1e-12).sum())
    assert small > 3


def test_masses(families_of, remainder_of):
    rng = np.random.default_rng(2)
    for _ in range(CASES):
        families = families_of(rng)
        p, left, distributions = map(there, (families["p"], remainder_of(rng, families), families["distributions"]))
        got, want = (op.excess(p, left, distributions) for op in (triton_ops, torch_ref))
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


def test_draws_are_equal_to_the_bit(families_of, remainder_of, noise_of):
    rng = np.random.default_rng(3)
    for _ in range(CASES):
        families = families_of(rng)
        p, left, distributions = map(there, (families["p"], remainder_of(rng, families), families["distributions"]))
        given = p, left, distributions, noise_of(rng, len(p)), Purpose.RESIDUAL
        assert torch.equal(triton_ops.residual(*given), torch_ref.residual(*given))


def test_uniforms_are_equal_to_the_bit(noise_of):
    rng = np.random.default_rng(4)
    for width in (1, 3, 1500):
        noise, words = noise_of(rng, 4), there(torch.from_numpy(rng.integers(-1, 2**31, (4, width))))
        assert torch.equal(triton_ops.uniform(noise, 2, words), torch_ref.uniform(noise, 2, words))


def test_walks_are_equal(trial, random_case):
    rng = np.random.default_rng(5)
    deepest = 0
    for _ in range(15):
        draft = random_case(rng, chains=False).draft(trees=True)
        rows = len(draft.tokens) + len(draft.lengths)
        forest = trial(draft, np.ones((rows, 12))).forest
        children = forest.families(np.arange(rows)).nodes
        ratio, uniforms = (torch.from_numpy(rng.random(children.shape)) for _ in range(2))
        arguments = torch.from_numpy(children), torch.from_numpy(forest.own_row), ratio * 1.5, uniforms
        arguments = (*map(there, (*arguments, torch.from_numpy(forest.starts))), forest.depth)
        got, want = triton_ops.tree_walk(*arguments), torch_ref.tree_walk(*arguments)
        assert all(torch.equal(*pair) for pair in zip(got, want, strict=True))
        deepest = max(deepest, int((want[1] >= 0).sum(1).max()) if len(want[1]) else 0)
    assert deepest >= 3


def test_whole_verdicts_are_those_of_the_definitions(kernels, call_of, monkeypatch):
    rng, judge = np.random.default_rng(6), Judge(kernels)
    accepted = 0
    for case in range(6):
        call = call_of(rng, trees=case % 2 == 0)
        call["logits"], call["target_draws"] = there(call["logits"]), there(call["target_draws"])
        if case % 3 == 0:
            call["target_draws"] = None
        rules = (at_once,) if case % 2 == 0 else (at_once, chain_of_tests)
        for rule in rules:
            trial = dataclasses.replace(judge.trial(**call), on_host=False)
            monkeypatch.setenv("SPECDEC_KERNELS", "triton")
            got = rule(trial)
            monkeypatch.setenv("SPECDEC_KERNELS", "reference")
            want = rule(trial)
            for field in ("accepted", "path", "emitted", "logits_row"):
                assert np.array_equal(getattr(got, field), getattr(want, field))
            accepted += len(want.path)
    assert accepted > 0


def test_nothing_to_do_gives_nothing():
    p, none = torch.zeros(0, 5, device=DEVICE), torch.zeros(0, dtype=torch.int64, device=DEVICE)
    distributions = Distributions(p[:, :1], none.double())
    left = Remainder(none, none.double(), none.double(), none, none[:, None])
    noise = type("N", (), {name: np.zeros(0, np.int64) for name in ("keys", "positions", "seq_index")})()
    assert triton_ops.excess(p, left, distributions).shape == (0,)
    assert triton_ops.residual(p, left, distributions, noise, 3).shape == (0,)
    assert triton_ops.accept(p, none[:, None], none[:, None] > 0, none, distributions)[0].shape == (0, 1)
    assert triton_ops.uniform(noise, 3, none[:, None]).shape == (0, 1)
